package mpa

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"goiwarp/internal/sock"
)

// Initiate starts MPA on sock as the initiator: it sends the Request and waits for the Reply. ird is
// how many inbound RDMA Reads we serve at a time, ord how many we would like to have outstanding;
// UlpNegotiates leaves either to the ULPs. private is handed to the responder's ULP.
//
// ctx bounds the startup, and so does opts.ReplyTimeout. Not one octet behind the Reply is read.
//
// The errors:
//   - *RejectError: the responder's ULP refused. MPA is over, sock is still open and at the octet
//     behind the Reply; it may be closed or be used for something else.
//   - *Error with CodeIRD or CodeRTR: the responder accepted on terms that we cannot keep. The
//     Conn is returned together with the error, since RFC 6581 asks for a Terminate Message with
//     that code; the caller sends it and closes.
//   - anything else: sock has been closed.
func Initiate(ctx context.Context, sock Socket, opts Options, private []byte, ird, ord int) (*Conn, *Params, error) {
	c, p, err := initiate(ctx, sock, opts, private, ird, ord)
	var r *RejectError
	if err != nil && c == nil && !errors.As(err, &r) {
		_ = sock.Close()
	}
	return c, p, err
}

func initiate(ctx context.Context, sock Socket, opts Options, private []byte, ird, ord int) (*Conn, *Params, error) {
	opts, err := opts.resolve()
	if err != nil {
		return nil, nil, err
	}
	if err := checkArgs(private, opts.Enhanced.on(true), ird, ord); err != nil {
		return nil, nil, err
	}
	s := startup{ctx: ctx, sock: sock, what: "Reply", limit: opts.ReplyTimeout}
	defer s.begin()()
	req := request(opts, private, ird, ord)
	if err := s.write(&req); err != nil {
		return nil, nil, err
	}
	b, err := s.readReply()
	if err != nil {
		return nil, nil, err
	}
	rep, err := ParseFrame(b)
	if err != nil {
		return nil, nil, err
	}
	if err := checkReply(&req, &rep); err != nil {
		return nil, nil, err
	}
	if rep.Reject {
		return nil, nil, &RejectError{PrivateData: rep.PrivateData, Enhanced: rep.Enhanced, IRD: rep.IRD, ORD: rep.ORD}
	}
	p, err := agree(opts, &req, &rep, ird, ord)
	return newConn(sock, p, opts.MaxFPDU), p, err
}

// Request is a valid Request that a responder has received and not yet answered. Exactly one of
// Accept and Reject answers it; without an answer the owner closes the socket.
type Request struct {
	PrivateData []byte // of the initiator's ULP, at most 512 octets, 508 if Enhanced
	Revision    int
	Enhanced    bool // IRD, ORD, PeerToPeer and RTR are the initiator's
	CRC         bool // the initiator wants CRCs; without it, they are used if we want them
	Markers     bool // the initiator wants Markers from us, and will get them
	IRD, ORD    int  // as the initiator offers them, UlpNegotiates included
	PeerToPeer  bool // the initiator will send a Ready-To-Receive message first
	RTR         RTR  // in one of these forms

	sock  Socket
	opts  Options
	frame Frame
}

// ReadRequest starts MPA on sock as the responder: it waits for the Request. read holds octets that
// have been taken from the stream already, as by someone who looked at the first ones to learn which
// protocol is spoken; it may be empty.
//
// ctx bounds the wait, and so does opts.RequestTimeout. On an error sock has been closed: a stream
// that does not begin with a Request leaves nothing that could be answered (RFC 5044, section 7.1.2).
func ReadRequest(ctx context.Context, sock Socket, read []byte, opts Options) (*Request, error) {
	r, err := readRequest(ctx, sock, read, opts)
	if err != nil {
		_ = sock.Close()
		return nil, err
	}
	return r, nil
}

func readRequest(ctx context.Context, sock Socket, read []byte, opts Options) (*Request, error) {
	opts, err := opts.resolve()
	if err != nil {
		return nil, err
	}
	s := startup{ctx: ctx, sock: sock, what: "Request", limit: opts.RequestTimeout}
	defer s.begin()()
	b, err := s.readRequest(read)
	if err != nil {
		return nil, err
	}
	f, err := ParseFrame(b)
	if err != nil {
		return nil, err
	}
	if err := checkRequest(opts, &f); err != nil {
		return nil, err
	}
	return &Request{
		PrivateData: f.PrivateData,
		Revision:    f.Revision,
		Enhanced:    f.Enhanced,
		CRC:         f.CRC,
		Markers:     f.Markers,
		IRD:         f.IRD,
		ORD:         f.ORD,
		PeerToPeer:  f.PeerToPeer,
		RTR:         f.RTR,
		sock:        sock,
		opts:        opts,
		frame:       f,
	}, nil
}

// Accept sends the Reply that accepts the connection. ird and ord are the most that we serve and
// would like to use; what comes of them is in Params. Everything that an arriving message needs,
// receive buffers above all, has to be in place: the initiator's first FPDU may be next.
//
// The Conn holds back what is queued on it until the initiator's first FPDU has arrived (RFC 5044,
// section 7.1.2, rule 4). On an error the socket has been closed.
func (r *Request) Accept(ctx context.Context, private []byte, ird, ord int) (*Conn, *Params, error) {
	if err := checkArgs(private, r.Enhanced, ird, ord); err != nil {
		_ = r.sock.Close()
		return nil, nil, err
	}
	f, p := reply(r.opts, &r.frame, private, ird, ord)
	if err := r.answer(ctx, &f); err != nil {
		_ = r.sock.Close()
		return nil, nil, err
	}
	return newConn(r.sock, p, r.opts.MaxFPDU), p, nil
}

// Reject sends the Reply that refuses the connection, with private data for the initiator's ULP. ird
// and ord are told to the initiator: an ORD above its IRD is the one that we would need. MPA is over
// then and the socket stays open; it is the caller's to close, or to use for something else. On an
// error the socket has been closed.
func (r *Request) Reject(ctx context.Context, private []byte, ird, ord int) error {
	err := checkArgs(private, r.Enhanced, ird, ord)
	if err == nil {
		f := rejection(r.opts, &r.frame, private, ird, ord)
		err = r.answer(ctx, &f)
	}
	if err != nil {
		_ = r.sock.Close()
	}
	return err
}

func (r *Request) answer(ctx context.Context, f *Frame) error {
	if s, ok := r.sock.(sock.EarlyReader); ok {
		if n := s.Readable(); n > 0 {
			return errorf(CodeFrame, "%d octets behind the Request, before the Reply", n)
		}
	}
	s := startup{ctx: ctx, sock: r.sock, what: "room for the Reply", limit: r.opts.ReplyTimeout}
	defer s.begin()()
	return s.write(f)
}

// startup reads and writes frames within the bounds of a context and a time limit.
type startup struct {
	ctx   context.Context
	sock  Socket
	what  string // what is waited for
	limit time.Duration
}

// begin sets the deadlines; the function that it returns lifts them.
func (s *startup) begin() func() {
	at := time.Now().Add(s.limit)
	if d, ok := s.ctx.Deadline(); ok && d.Before(at) {
		at = d
	}
	_ = s.sock.SetReadDeadline(at)
	_ = s.sock.SetWriteDeadline(at)
	ran := make(chan struct{})
	stop := context.AfterFunc(s.ctx, func() {
		defer close(ran)
		past := time.Unix(1, 0)
		_ = s.sock.SetReadDeadline(past)
		_ = s.sock.SetWriteDeadline(past)
	})
	return func() {
		if !stop() {
			<-ran // else it might set its deadline after ours
		}
		_ = s.sock.SetReadDeadline(time.Time{})
		_ = s.sock.SetWriteDeadline(time.Time{})
	}
}

// fail says why a read or write failed.
func (s *startup) fail(err error) error {
	e := &Error{Code: CodeLost, Detail: "waiting for " + s.what, Err: err}
	switch {
	case s.ctx.Err() != nil:
		e.Err = context.Cause(s.ctx)
	case s.pastDeadline(): // the socket's clock was faster than the context's
		e.Err = context.DeadlineExceeded
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.Detail = fmt.Sprintf("no %s within %v", s.what, s.limit)
	case errors.Is(err, io.EOF):
		e.Detail, e.Err = "peer closed before its "+s.what, io.ErrUnexpectedEOF
	}
	return e
}

func (s *startup) pastDeadline() bool {
	d, ok := s.ctx.Deadline()
	return ok && !time.Now().Before(d)
}

func (s *startup) write(f *Frame) error {
	b := f.AppendTo(make([]byte, 0, MaxFrameLen))
	for len(b) > 0 {
		if s.ctx.Err() != nil {
			return s.fail(nil)
		}
		n, err := s.sock.Write([][]byte{b})
		if err != nil {
			return s.fail(err)
		}
		b = b[n:]
	}
	return nil
}

// readReply reads a Reply and nothing behind it: after a refusal the stream goes on as something
// else.
func (s *startup) readReply() ([]byte, error) {
	b := make([]byte, 0, MaxFrameLen)
	for {
		n, err := frameLen(b, true)
		if err != nil {
			return nil, err
		}
		if len(b) == n {
			return b, nil
		}
		if b, err = s.read(b, n); err != nil {
			return nil, err
		}
	}
}

// readRequest reads a Request, of which b is the beginning. What comes with it in one read and does
// not belong to it was sent too early.
func (s *startup) readRequest(read []byte) ([]byte, error) {
	const ahead = 64
	if len(read) > MaxFrameLen {
		read = read[:MaxFrameLen+1] // one more than can be right
	}
	b := append(make([]byte, 0, MaxFrameLen+ahead), read...)
	for {
		n, err := frameLen(b, false)
		if err != nil {
			return nil, err
		}
		switch {
		case len(b) > n:
			return nil, errorf(CodeFrame, "%d octets behind the Request, before the Reply", len(b)-n)
		case len(b) == n:
			return b, nil
		}
		if b, err = s.read(b, cap(b)); err != nil {
			return nil, err
		}
	}
}

// read appends to b what is there, until b has no more than limit octets.
func (s *startup) read(b []byte, limit int) ([]byte, error) {
	if s.ctx.Err() != nil {
		return nil, s.fail(nil)
	}
	into := &SliceScatter{B: b[len(b):limit]}
	n, err := s.sock.Read(into)
	if err != nil {
		return nil, s.fail(err)
	}
	return b[:len(b)+n], nil
}
