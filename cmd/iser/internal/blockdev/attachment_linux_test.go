package blockdev

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"goiwarp/cmd/iser/internal/nbd"
	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// zeros is a disk that reads as zeros.
type zeros struct{}

type memory []byte

func (m memory) Bytes() []byte { return m }
func (m memory) Release()      {}

func (zeros) Alloc(n int) (iscsi.Buffer, error) { return memory(make([]byte, n)), nil }
func (zeros) Submit(reqs ...*initiator.Request) error {
	for _, r := range reqs {
		r.Err = nil
		r.Done(r)
	}
	return nil
}
func (zeros) Unmap(context.Context, ...scsi.Extent) error             { return nil }
func (zeros) WriteZeroes(context.Context, uint64, uint64, bool) error { return nil }
func (zeros) GetLBAStatus(context.Context, uint64) ([]initiator.BlockStatus, error) {
	panic("nobody asks")
}
func (zeros) Flush(context.Context) error { return nil }

// kernel is a Driver that keeps sockets as the kernel does: a fixed number, each replaced only when it is dead.
type kernel struct {
	t     *testing.T
	mu    sync.Mutex
	bound bool
	socks []net.Conn // nil: dead
	size  int64
	last  Settings
	taken chan int // a socket was taken into this place
}

func (k *kernel) hold(fd int) net.Conn {
	d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(k.t, err)
	f := os.NewFile(uintptr(d), "kernel")
	defer f.Close()
	c, err := net.FileConn(f)
	require.NoError(k.t, err)
	return c
}

func (k *kernel) Connect(s Settings, sockets []int) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.bound {
		return 0, &BusyError{Device: Path(3)}
	}
	k.bound, k.size, k.last = true, s.Size, s
	for i, fd := range sockets {
		k.socks = append(k.socks, k.hold(fd))
		k.taken <- i
	}
	return 3, nil
}

func (k *kernel) Reconfigure(s Settings, sockets []int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.bound || s.Identifier != k.last.Identifier {
		return unix.EINVAL
	}
	if s.Size > 0 {
		k.size = s.Size
	}
	for _, fd := range sockets {
		for i, c := range k.socks {
			if c == nil {
				k.socks[i] = k.hold(fd)
				k.taken <- i
				break
			}
		}
	}
	return nil
}

// Disconnect says goodbye on every connection.
func (k *kernel) Disconnect(int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.socks {
		if c != nil {
			_, _ = c.Write(header(nbd.CmdDisconnect, 0))
			_ = c.Close()
		}
	}
	k.bound, k.socks = false, nil
	return nil
}

func (k *kernel) Bound(int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.bound
}

// cut lets a connection die.
func (k *kernel) cut(i int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = k.socks[i].Close()
	k.socks[i] = nil
}

// vanish is the end of a device without a goodbye.
func (k *kernel) vanish() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.socks {
		_ = c.Close()
	}
	k.bound, k.socks = false, nil
}

func header(c nbd.Command, n uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, 0x25609513)
	b = binary.BigEndian.AppendUint16(b, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(c))
	b = binary.BigEndian.AppendUint64(b, 9)
	b = binary.BigEndian.AppendUint64(b, 0)
	return binary.BigEndian.AppendUint32(b, n)
}

// read asks a connection for a block.
func (k *kernel) read(i int) {
	k.t.Helper()
	k.mu.Lock()
	c := k.socks[i]
	k.mu.Unlock()
	_, err := c.Write(header(nbd.CmdRead, 512))
	require.NoError(k.t, err)
	b := make([]byte, 16+512)
	_, err = io.ReadFull(c, b)
	require.NoError(k.t, err)
	require.Equal(k.t, []byte{0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0}, b[:8])
}

const url = "iser://192.0.2.1:3260/iqn.2026-11.com.example:t/0"

type fixture struct {
	*kernel
	server *nbd.Server
	set    Settings
	at     *Attachment
	stop   context.CancelFunc
	over   chan error
}

func newFixture(t *testing.T, connections int) *fixture {
	x := nbd.Export{Size: 1 << 20, BlockSize: 512}
	s, err := nbd.New(zeros{}, x, nbd.Config{})
	require.NoError(t, err)
	f := &fixture{kernel: &kernel{t: t, taken: make(chan int, 64)}, server: s}
	f.set = Settings{Index: Any, Size: x.Size, BlockSize: 512, Flags: x.Flags(), Identifier: url, Timeout: time.Second}
	f.at, err = Attach(f.kernel, s, f.set, connections, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Equal(t, 3, f.at.Index())
	for range connections {
		<-f.taken
	}
	f.run()
	return f
}

func (f *fixture) run() {
	ctx, cancel := context.WithCancel(context.Background())
	f.stop, f.over = cancel, make(chan error, 1)
	go func() { f.over <- f.at.Run(ctx) }()
}

func TestLostConnectionsAreMadeAgain(t *testing.T) {
	f := newFixture(t, 3)
	for i := range 3 {
		f.read(i)
	}
	for _, i := range []int{1, 0, 1, 2} {
		f.cut(i)
		require.Equal(t, i, <-f.taken)
		f.read(i)
		f.read((i + 1) % 3)
	}
	require.NoError(t, f.Disconnect(3))
	require.ErrorIs(t, <-f.over, ErrDetached)
	f.stop()
}

// TestAdoption: the process ends and leaves the device; the next one serves it.
func TestAdoption(t *testing.T) {
	f := newFixture(t, 2)
	f.stop()
	require.NoError(t, <-f.over)
	require.True(t, f.Bound(3))
	f.cut(0)
	f.cut(1)
	set := f.set
	set.Index = 3
	f.at = Adopt(f.kernel, f.server, set, 2, slog.New(slog.DiscardHandler))
	f.run()
	<-f.taken
	<-f.taken
	f.read(0)
	f.read(1)
	require.NoError(t, f.at.Resize(2<<20))
	require.EqualValues(t, 2<<20, f.size)
	f.vanish()
	require.ErrorIs(t, <-f.over, ErrDetached)
	f.stop()
}

// TestAdoptionBeforeTheKernelKnows: sockets come before the kernel has seen the old ones die, and are offered again.
func TestAdoptionBeforeTheKernelKnows(t *testing.T) {
	f := newFixture(t, 1)
	old := f.socks[0]
	set := f.set
	set.Index = 3
	f.stop()
	require.NoError(t, <-f.over)
	offered := make(chan struct{}, 64)
	f.at = Adopt(&offers{f.kernel, offered}, f.server, set, 1, slog.New(slog.DiscardHandler))
	f.run()
	<-offered
	<-offered // the first was not taken
	require.Same(t, old, f.socks[0])
	f.cut(0)
	<-f.taken
	f.read(0)
	f.stop()
	require.NoError(t, <-f.over)
	f.vanish()
}

// offers tells of each Reconfigure.
type offers struct {
	*kernel
	made chan struct{}
}

func (o *offers) Reconfigure(s Settings, sockets []int) error {
	err := o.kernel.Reconfigure(s, sockets)
	o.made <- struct{}{}
	return err
}

func TestAttachFails(t *testing.T) {
	f := newFixture(t, 1)
	_, err := Attach(f.kernel, f.server, f.set, 2, slog.New(slog.DiscardHandler))
	busy := new(BusyError)
	require.ErrorAs(t, err, &busy)
	f.vanish()
	require.ErrorIs(t, <-f.over, ErrDetached)
	f.stop()
}

func TestIndex(t *testing.T) {
	for s, want := range map[string]int{"/dev/nbd0": 0, "/dev/nbd41": 41} {
		n, err := Index(s)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	for _, s := range []string{"/dev/nbd", "/dev/nbd0p1", "/dev/null", "nbd0", "/dev/nbd-1", "/dev/nbd99999999999999999999", ""} {
		_, err := Index(s)
		require.Error(t, err, s)
	}
}

func TestFind(t *testing.T) {
	list := []Device{
		{Index: 0, Path: "/dev/nbd0", URL: url},
		{Index: 1, Path: "/dev/nbd1", URL: "iscsi://192.0.2.1:3260/iqn.2026-11.com.example:t/1"},
		{Index: 2, Path: "/dev/nbd2", URL: "iscsi://192.0.2.1:3260/iqn.2026-11.com.example:t/0"},
	}
	for name, want := range map[string]int{
		"/dev/nbd1": 1,
		"/dev/nbd7": -1,
		url:         0,
		"iser://192.0.2.1/iqn.2026-11.com.example:t/0":  0, // without the port
		"iser://localhost/iqn.2026-11.com.example:t/1":  1, // by another portal
		"iscsi://192.0.2.1/iqn.2026-11.com.example:t/0": 2,
		"iser://192.0.2.1/iqn.2026-11.com.example:u/0":  -1,
		"iser://192.0.2.1/iqn.2026-11.com.example:t/3":  -1,
	} {
		d, ok, err := Find(list, name)
		require.NoError(t, err, name)
		require.Equal(t, want >= 0, ok, name)
		if ok {
			require.Equal(t, want, d.Index, name)
		}
	}
	_, _, err := Find(list, "iser://localhost/iqn.2026-11.com.example:t/0")
	require.ErrorContains(t, err, "several times")
}

// TestNetlinkMessages: octets put together from the header file's numbers.
func TestNetlinkMessages(t *testing.T) {
	n := &Netlink{family: 0x21}
	m := n.message(cmdReconfigure, Settings{Index: 2, Identifier: "x", Timeout: 1500 * time.Millisecond}, []int{5, 6}).Serialize()
	le := binary.NativeEndian
	require.EqualValues(t, len(m), le.Uint32(m))
	require.EqualValues(t, 0x21, le.Uint16(m[4:]))
	want := []byte{3, 1, 0, 0}
	attr := func(typ uint16, v []byte) []byte {
		b := le.AppendUint16(nil, uint16(4+len(v)))
		b = append(le.AppendUint16(b, typ), v...)
		return append(b, make([]byte, (4-len(b)%4)%4)...)
	}
	want = append(want, attr(1, le.AppendUint32(nil, 2))...)
	want = append(want, attr(4, le.AppendUint64(nil, 2))...)
	want = append(want, attr(10, []byte("x\x00"))...)
	sock := func(fd uint32) []byte { return attr(1|0x8000, attr(1, le.AppendUint32(nil, fd))) }
	want = append(want, attr(7|0x8000, append(sock(5), sock(6)...))...)
	require.Equal(t, want, m[16:])
}
