package iser

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestHelloReplyAnswersAHello: a HelloReply that overtakes the Hello is none (RFC 7145, section 5.1.3); a target may have sent it together with
// its MPA Reply, before this end has looked at that.
func TestHelloReplyAnswersAHello(t *testing.T) {
	msg := AppendHelloReply(nil, 1, false)
	d := &Datamover{phase: phaseFull, helloWait: true}
	var he *HeaderError
	require.ErrorAs(t, d.receiveHello(msg, true, true), &he)
	require.True(t, d.helloWait)
	d.helloTimer = time.NewTimer(time.Hour)
	require.NoError(t, d.receiveHello(msg, true, true))
	require.False(t, d.helloWait)
}
