package initiator

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

func TestDiskCommandsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	f := newFake()
	f.script = func(f *fake, p *iscsi.PDU, b *iscsi.TaskBuffers) bool {
		if !isCommand(p, scsi.OpInquiry) || iscsi.SCSICommand(p.BHS[:]).CDB()[1] != 0 {
			return false
		}
		f.count(p)
		f.good(iscsi.SCSICommand(p.BHS[:]), b.InLen-copy(b.In.Bytes()[:b.InLen], append([]byte{0, 0, 6, 2, 31}, make([]byte, 31)...)))
		return true
	}
	d, err := OpenDisk(context.Background(), DiskConfig{}, PathConfig{Dialer: f, Addr: "10.0.0.1:3260", TargetName: testTarget})
	require.NoError(t, err)
	defer d.Close()
	buf, err := d.Alloc(8 * testBlock)
	require.NoError(t, err)
	defer buf.Release()
	ctx := t.Context()
	require.NoError(t, d.WriteBuf(ctx, 0, 8, buf))
	require.Zero(t, testing.AllocsPerRun(200, func() {
		if d.ReadBuf(ctx, 8, 8, buf) != nil || d.WriteBuf(ctx, 8, 8, buf) != nil {
			panic("failed")
		}
	}))
	done := make(chan *Request, 8)
	reqs := make([]*Request, 8)
	for i := range reqs {
		reqs[i] = &Request{Done: Notify(done)}
	}
	require.Zero(t, testing.AllocsPerRun(200, func() {
		for i, r := range reqs {
			d.PrepareWrite(r, uint64(i), 1, testBlock, buf)
		}
		if d.Submit(reqs...) != nil {
			panic("failed")
		}
		for range reqs {
			<-done
		}
	}))
}
