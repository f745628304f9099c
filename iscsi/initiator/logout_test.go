package initiator

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
)

// TestLogoutAnsweredByTheEnd: a target that closes the connection instead of answering has let the session go; a connection that
// breaks has not.
func TestLogoutAnsweredByTheEnd(t *testing.T) {
	broken := errors.New("broken")
	for _, cause := range []error{nil, broken} {
		f := newFake()
		f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
			if p.Opcode() != iscsi.OpLogoutReq {
				return false
			}
			f.hangUp(cause)
			return true
		}
		s := start(t, f)
		if err := s.Logout(t.Context()); cause == nil {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, broken)
		}
		<-s.Done()
	}
}
