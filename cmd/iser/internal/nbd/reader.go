package nbd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"goiwarp/internal/sock"
)

// drainTimeout is how long a client has to take its last replies.
const drainTimeout = 5 * time.Second

// readAhead is how much is read from the socket at once if nobody waits for a payload, in octets: a few requests with short payloads.
const readAhead = 8 << 10

// input reads a socket: headers out of a buffer, payloads into their destination, past the buffer.
type input struct {
	s        sock.Socket
	buf      [readAhead]byte
	from, to int    // what was read and not used
	dst      []byte // where the next octets go, before buf
	list     [2][]byte
}

// Acquire implements sock.Scatter.
func (in *input) Acquire() ([][]byte, error) {
	if in.from == in.to || in.to == len(in.buf) {
		in.compact()
	}
	if len(in.dst) == 0 {
		in.list[0] = in.buf[in.to:]
		return in.list[:1], nil
	}
	in.list[0], in.list[1] = in.dst, in.buf[in.to:]
	return in.list[:], nil
}

// Release implements sock.Scatter.
func (in *input) Release(n int) {
	k := min(n, len(in.dst))
	in.dst = in.dst[k:]
	in.to += n - k
}

// next is the next n octets, at most readAhead. They are good until the next call.
func (in *input) next(n int) ([]byte, error) {
	if len(in.ahead()) < n {
		in.compact()
	}
	for in.to < n {
		if _, err := in.s.Read(in); err != nil {
			if errors.Is(err, io.EOF) && in.to > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	b := in.buf[in.from : in.from+n]
	in.from += n
	return b, nil
}

// ahead is what was read and not used.
func (in *input) ahead() []byte { return in.buf[in.from:in.to] }

// compact moves it to the front.
func (in *input) compact() { in.from, in.to = 0, copy(in.buf[:], in.ahead()) }

// fill reads len(b) octets into b.
func (in *input) fill(b []byte) error {
	n := copy(b, in.buf[in.from:in.to])
	in.from += n
	if n == len(b) {
		return nil
	}
	in.from, in.to, in.dst = 0, 0, b[n:]
	for len(in.dst) > 0 {
		if _, err := in.s.Read(in); err != nil {
			in.dst = nil
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// skip reads n octets that nobody wants.
func (in *input) skip(n int) error {
	for n > 0 {
		b, err := in.next(min(n, readAhead))
		if err != nil {
			return err
		}
		n -= len(b)
	}
	return nil
}

// transmission is a connection in the transmission phase. Its reader is run; the writing half is of whoever set writing.
type transmission struct {
	s      *Server
	sock   sock.Socket
	guest  *sock.Guest // sock, if a poller visits it
	over   bool        // a visit has met the connection's end, which is end
	end    error
	in     input
	pool   *pool
	agreed agreement
	ctx    context.Context // of work that is not one command; ends when the disk's owner gives up
	long   sync.WaitGroup  // goroutines of such work

	out output
}

func newTransmission(s *Server, c net.Conn, p *pool, agreed agreement) *transmission {
	t := &transmission{s: s, pool: p, agreed: agreed, ctx: context.Background()}
	if t.guest = s.cfg.Poller.Join(c, t); t.guest != nil {
		t.sock = t.guest
	} else {
		t.sock = sock.NewSocket(c)
	}
	t.in.s = t.sock
	t.out.init(t)
	return t
}

// run serves until the end.
func (t *transmission) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		t.pool.close()
		_ = t.sock.SetReadDeadline(time.Unix(1, 0))
		_ = t.sock.SetWriteDeadline(time.Now().Add(drainTimeout))
	})
	var writer sync.WaitGroup
	writer.Go(t.out.run)
	err := t.serve()
	stop()
	if t.guest != nil {
		t.guest.Leave()
	}
	if ctx.Err() != nil {
		err = nil // what was not taken was not answered either
	}
	if err != nil {
		t.out.fail(err) // nobody reads any more: a writer that waits ends
	}
	t.long.Wait()
	t.pool.settle()
	t.out.end()
	writer.Wait()
	_ = t.sock.Close()
	return err
}

// serve reads requests until the client says goodbye.
func (t *transmission) serve() error {
	for {
		if t.guest != nil && t.attend() {
			return t.end
		}
		b, err := t.in.next(requestLen)
		if err != nil {
			return err
		}
		r, err := parseRequest(b)
		if err != nil {
			return err
		}
		if r.typ == CmdDisconnect {
			return nil
		}
		if more, err := t.take(r); err != nil || !more {
			return err
		}
	}
}

// take begins one request. It is false when the connection is to end without an error.
func (t *transmission) take(r request) (bool, error) {
	t.s.stats.requests.Add(1)
	if r.payload() > MaxRequest {
		return false, &ProtocolError{What: "write", Why: fmt.Sprintf("%d octets, more than the %d that may be sent", r.length, MaxRequest)}
	}
	e := t.refuse(&r)
	n := 0
	if e == 0 {
		n = r.moves()
	}
	k, err := t.pool.take(n)
	if err != nil || k == nil {
		return false, err
	}
	k.conn, k.request = t, r
	k.failure.Store(0)
	if e != 0 {
		if err := t.in.skip(int(r.payload())); err != nil {
			t.pool.put(k)
			return false, err
		}
		k.fail(e)
		t.begun()
		k.answer()
		return true, nil
	}
	if r.typ == CmdWrite {
		for _, x := range k.pieces {
			if err := t.in.fill(x.buf.Bytes()[:x.n]); err != nil {
				t.pool.put(k)
				return false, err
			}
		}
	}
	t.begun()
	k.begin()
	return true, nil
}

// begun tells the poller of a request; task.answer tells it of the end.
func (t *transmission) begun() {
	if t.guest != nil {
		t.guest.Begun()
	}
}

// refuse says what is wrong with a request, without a look at its payload.
func (t *transmission) refuse(r *request) Errno {
	x := &t.s.export
	bs := uint64(x.BlockSize)
	known := uint16(0)
	switch r.typ {
	case CmdRead:
		known = cmdFlagFUA // means nothing, and is allowed
		if t.agreed.structured {
			known |= cmdFlagDF // and all are
		}
	case CmdWrite, CmdTrim:
		known = cmdFlagFUA
	case CmdFlush:
		return 0 // all else is reserved
	case CmdWriteZeroes:
		known = cmdFlagFUA | cmdFlagNoHole
		if x.fastZero() {
			known |= cmdFlagFastZero
		}
	case CmdBlockStatus:
		if known = cmdFlagReqOne; !t.agreed.allocation {
			return errnoInval
		}
	case CmdCache:
		if !x.Prefetch {
			return errnoInval
		}
	default:
		return errnoInval
	}
	switch {
	case x.ReadOnly && r.changes():
		return errnoPerm
	case r.typ == CmdTrim && !x.Unmap && !x.UnmapSame:
		return errnoNotSup
	case r.flags&^known != 0, r.length == 0, r.offset%bs != 0, uint64(r.length)%bs != 0:
		return errnoInval
	case (r.typ == CmdRead || r.typ == CmdWrite) && uint64(r.length) > uint64(t.pool.largest()):
		return errnoInval
	case r.flags&cmdFlagFastZero != 0 && r.flags&cmdFlagNoHole != 0:
		return errnoNotSup // holes are what is fast
	case !r.within(t.s.size.Load()):
		if r.typ == CmdWrite || r.typ == CmdWriteZeroes {
			return errnoNoSpace
		}
		return errnoInval
	}
	return 0
}
