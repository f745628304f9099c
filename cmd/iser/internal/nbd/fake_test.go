package nbd

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

const blockSize = 512

// ram is a Disk in memory that answers when it is told to.
type ram struct {
	mu      sync.Mutex
	b       []byte
	held    []*initiator.Request // submitted while hold is set
	hold    bool
	err     error // of the next commands
	flushes atomic.Int32
	fua     atomic.Int32
	lent    atomic.Int32
	fetched atomic.Int32
	unmap   []scsi.Extent
	holes   []initiator.BlockStatus // what GET LBA STATUS tells
	most    int                     // and how many of them at once; 0: all
	zero    []bool
}

type loan struct {
	b []byte
	d *ram
}

func (l *loan) Bytes() []byte { return l.b }
func (l *loan) Release()      { l.d.lent.Add(-1) }

func newRAM(n int) *ram { return &ram{b: make([]byte, n)} }

func (d *ram) Alloc(n int) (iscsi.Buffer, error) {
	if d.lent.Add(1) > 1<<14 {
		d.lent.Add(-1)
		return nil, iscsi.ErrNoMemory
	}
	return &loan{make([]byte, n), d}, nil
}

func (d *ram) Submit(reqs ...*initiator.Request) error {
	for _, r := range reqs {
		d.mu.Lock()
		hold := d.hold
		if hold {
			d.held = append(d.held, r)
		}
		d.mu.Unlock()
		if !hold {
			d.do(r)
		}
	}
	return nil
}

// set changes what the disk does from now on.
func (d *ram) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// release answers what is held, the last first.
func (d *ram) release() {
	d.mu.Lock()
	held := d.held
	d.held, d.hold = nil, false
	d.mu.Unlock()
	for i := len(held) - 1; i >= 0; i-- {
		d.do(held[i])
	}
}

// at is a copy of the contents.
func (d *ram) at(off, n int) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]byte(nil), d.b[off:off+n]...)
}

// taken is what was unmapped and zeroed.
func (d *ram) taken() ([]scsi.Extent, []bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unmap, d.zero
}

func (d *ram) waiting() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.held)
}

func (d *ram) do(r *initiator.Request) {
	d.mu.Lock()
	r.Err, r.Residual = d.err, 0
	lba := uint64(binary.BigEndian.Uint32(r.CDB[2:]))
	switch c := r.CDB; c[0] {
	case scsi.OpRead10:
		copy(r.In.Bytes()[:r.InLen], d.b[lba*blockSize:])
	case scsi.OpWrite10:
		if c[1]&scsi.FUA != 0 {
			d.fua.Add(1)
		}
		if r.Err == nil {
			copy(d.b[lba*blockSize:], r.Out.Bytes()[:r.OutLen])
		}
	case scsi.OpPreFetch10:
		d.fetched.Add(1)
	case scsi.OpSynchronizeCache10:
		d.flushes.Add(1)
	default:
		panic(c)
	}
	d.mu.Unlock()
	r.Done(r)
}

func (d *ram) Unmap(_ context.Context, e ...scsi.Extent) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unmap = append(d.unmap, e...)
	return d.err
}

func (d *ram) WriteZeroes(_ context.Context, lba, blocks uint64, unmap bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.zero = append(d.zero, unmap)
	clear(d.b[lba*blockSize : (lba+blocks)*blockSize])
	return d.err
}

func (d *ram) Flush(context.Context) error {
	d.flushes.Add(1)
	return nil
}

func (d *ram) GetLBAStatus(_ context.Context, lba uint64) ([]initiator.BlockStatus, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return nil, d.err
	}
	var list []initiator.BlockStatus
	for _, e := range d.holes {
		if end := e.LBA + uint64(e.Blocks); end > lba && (d.most == 0 || len(list) < d.most) {
			from := max(lba, e.LBA)
			list = append(list, initiator.BlockStatus{LBA: from, Blocks: uint32(end - from), State: e.State})
		}
	}
	return list, nil
}

func export(d *ram) Export {
	return Export{Name: "disk", Description: "a disk", Size: int64(len(d.b)), BlockSize: blockSize, Cache: true, FUA: true, Unmap: true, UnmapSame: true}
}

// client speaks the transmission phase.
type client struct {
	t testing.TB
	c net.Conn
}

// send sends one request.
func (c *client) send(cmd Command, flags uint16, cookie, off uint64, n uint32, payload []byte) {
	_, err := c.c.Write(appendRequest(nil, cmd, flags, cookie, off, n, payload))
	require.NoError(c.t, err)
}

func appendRequest(b []byte, cmd Command, flags uint16, cookie, off uint64, n uint32, payload []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, magicRequest)
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint16(b, uint16(cmd))
	b = binary.BigEndian.AppendUint64(b, cookie)
	b = binary.BigEndian.AppendUint64(b, off)
	b = binary.BigEndian.AppendUint32(b, n)
	return append(b, payload...)
}

// reply reads a reply's header.
func (c *client) reply() (cookie uint64, e Errno) {
	var b [simpleReplyLen]byte
	_, err := io.ReadFull(c.c, b[:])
	require.NoError(c.t, err)
	require.EqualValues(c.t, magicSimpleReply, binary.BigEndian.Uint32(b[:]))
	return binary.BigEndian.Uint64(b[8:]), Errno(binary.BigEndian.Uint32(b[4:]))
}

// do sends a request and reads its reply.
func (c *client) do(cmd Command, flags uint16, off uint64, n uint32, payload []byte) ([]byte, Errno) {
	c.send(cmd, flags, 7, off, n, payload)
	cookie, e := c.reply()
	require.EqualValues(c.t, 7, cookie)
	if cmd != CmdRead || e != 0 {
		return nil, e
	}
	b := make([]byte, n)
	_, err := io.ReadFull(c.c, b)
	require.NoError(c.t, err)
	return b, 0
}

// pair is both ends of a connection through the kernel.
func pair(t testing.TB, network string) (net.Conn, net.Conn) {
	addr := "127.0.0.1:0"
	if network == "unix" {
		addr = t.TempDir() + "/s"
	}
	ln, err := net.Listen(network, addr)
	require.NoError(t, err)
	defer ln.Close()
	near, err := net.Dial(network, ln.Addr().String())
	require.NoError(t, err)
	far, err := ln.Accept()
	require.NoError(t, err)
	return near, far
}

// session is a server that transmits on one connection.
type session struct {
	*client
	s    *Server
	d    *ram
	stop context.CancelFunc
	done chan error
}

func newSession(t testing.TB, d *ram, x Export, cfg Config) *session {
	return newAgreed(t, d, x, cfg, agreement{})
}

func newAgreed(t testing.TB, d *ram, x Export, cfg Config, agreed agreement) *session {
	cfg.Poller = polling
	s, err := New(d, x, cfg)
	require.NoError(t, err)
	near, far := pair(t, "unix")
	ctx, cancel := context.WithCancel(context.Background())
	v := &session{&client{t, near}, s, d, cancel, make(chan error, 1)}
	go func() { v.done <- s.transmit(ctx, far, agreed) }()
	t.Cleanup(func() {
		cancel()
		_ = near.Close()
		d.release()
		if err, ok := <-v.done; ok {
			close(v.done)
			_ = err
		}
		s.Close()
		require.Zero(t, d.lent.Load(), "memory that was not given back")
	})
	return v
}

// end is how Transmit returned.
func (v *session) end() error {
	err := <-v.done
	close(v.done)
	return err
}
