package soft

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	"goiwarp/mpa"
	"goiwarp/rdmap"
	"goiwarp/rnic"
)

// connector is an outgoing connection. Its life:
//
//	new --CreateQP--> ready --Connect--> connecting --> over (connected, refused, failed or closed)
type connector struct {
	dev  *Device
	conn net.Conn
	sock mpa.Socket
	opts *rnic.LinkOptions

	mu   sync.Mutex // guards what follows
	qp   *qp
	busy bool // Connect was called
	over bool
}

func (d *Device) newConnector(c net.Conn, opts *rnic.LinkOptions) (rnic.Connector, error) {
	k := &connector{dev: d, conn: c, sock: mpa.NewSocket(c), opts: opts}
	if err := d.track(k); err != nil {
		k.sock.Close()
		return nil, err
	}
	return k, nil
}

// UpgradeConnector implements rnic.StreamUpgrader.
func (d *Device) UpgradeConnector(ctx context.Context, conn net.Conn, opts *rnic.LinkOptions) (rnic.Connector, error) {
	if err := d.need(rnic.CapStreamUpgrade, "upgrading a stream"); err != nil {
		return nil, err
	}
	if err := checkOptions(opts); err != nil {
		return nil, err
	}
	return d.newConnector(conn, opts)
}

func (k *connector) LocalAddr() net.Addr  { return k.conn.LocalAddr() }
func (k *connector) RemoteAddr() net.Addr { return k.conn.RemoteAddr() }

// CreateQP implements rnic.Connector.
func (k *connector) CreateQP(cfg rnic.QPConfig) (rnic.QP, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.over:
		return nil, fmt.Errorf("%w: connector", rnic.ErrClosed)
	case k.qp != nil:
		return nil, fmt.Errorf("%w: the connection has its queue pair", rnic.ErrState)
	}
	q, err := k.dev.newQP(cfg)
	if err != nil {
		return nil, err
	}
	q.cancel = func() { k.Close() }
	k.qp = q
	return q, nil
}

// Connect implements rnic.Connector. A failure is told by the error alone: the QP has no event,
// and what was posted on it is flushed.
func (k *connector) Connect(ctx context.Context, p rnic.ConnParams) (rnic.ConnInfo, error) {
	if err := k.dev.checkParams(p); err != nil {
		return rnic.ConnInfo{}, err
	}
	k.mu.Lock()
	switch {
	case k.over:
		k.mu.Unlock()
		return rnic.ConnInfo{}, fmt.Errorf("%w: connector", rnic.ErrClosed)
	case k.qp == nil || k.busy:
		k.mu.Unlock()
		return rnic.ConnInfo{}, fmt.Errorf("%w: Connect comes once, after CreateQP", rnic.ErrState)
	}
	k.busy = true
	q := k.qp
	k.mu.Unlock()

	info, err := k.connect(ctx, q, p)
	k.mu.Lock()
	closed := k.over
	k.over = true
	k.mu.Unlock()
	k.dev.untrack(k)
	if err != nil {
		if closed {
			err = fmt.Errorf("%w while connecting: %w", rnic.ErrClosed, err)
		}
		q.fail(err)
	}
	return info, err
}

func (k *connector) connect(ctx context.Context, q *qp, p rnic.ConnParams) (rnic.ConnInfo, error) {
	c, params, err := mpa.Initiate(ctx, k.sock, mpaOptions(k.opts), p.PrivateData, p.IRD, p.ORD)
	var r *mpa.RejectError
	switch {
	case errors.As(err, &r):
		k.sock.Close()
		return rnic.ConnInfo{}, &rnic.RejectedError{PrivateData: r.PrivateData, PeerIRD: r.IRD, PeerORD: r.ORD}
	case c == nil:
		return rnic.ConnInfo{}, fmt.Errorf("soft: connect to %v: %w", k.conn.RemoteAddr(), err)
	}
	info := k.dev.connInfo(k.conn, k.sock, c, params)
	cfg := k.dev.streamConfig(params, k.opts, info)
	if err != nil {
		// Accepted on terms that this side cannot keep: the peer learns of it by a Terminate
		// Message (RFC 6581, sections 9.1 and 9.2).
		q.onEvent = nil
		if e := q.start(c, cfg, info); e == nil {
			q.stream.Terminate(err)
		}
		return rnic.ConnInfo{}, fmt.Errorf("soft: connect to %v: %w", k.conn.RemoteAddr(), err)
	}
	if err := q.start(c, cfg, info); err != nil {
		return rnic.ConnInfo{}, err
	}
	return info, nil
}

// Close implements rnic.Connector. A Connect that is under way fails.
func (k *connector) Close() error {
	k.mu.Lock()
	if k.over {
		k.mu.Unlock()
		return nil
	}
	k.over = true
	q, busy := k.qp, k.busy
	k.mu.Unlock()
	k.sock.Close()
	k.dev.untrack(k)
	if q != nil && !busy {
		q.fail(fmt.Errorf("%w: connector", rnic.ErrClosed))
	}
	return nil
}

// request is an incoming connection.
type request struct {
	dev  *Device
	conn net.Conn
	sock mpa.Socket
	opts *rnic.LinkOptions
	req  *mpa.Request

	mu       sync.Mutex // guards what follows
	qp       *qp
	answered bool
}

// UpgradeRequest implements rnic.StreamUpgrader. On an error the connection has been closed.
func (d *Device) UpgradeRequest(ctx context.Context, conn net.Conn, read []byte, opts *rnic.LinkOptions) (rnic.Request, error) {
	err := d.need(rnic.CapStreamUpgrade, "upgrading a stream")
	if err == nil {
		err = checkOptions(opts)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	r, err := d.newRequest(ctx, conn, read, opts)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (d *Device) newRequest(ctx context.Context, conn net.Conn, read []byte, opts *rnic.LinkOptions) (*request, error) {
	r := &request{dev: d, conn: conn, sock: mpa.NewSocket(conn), opts: opts}
	var err error
	if r.req, err = mpa.ReadRequest(ctx, r.sock, read, mpaOptions(opts)); err != nil {
		return nil, fmt.Errorf("soft: request from %v: %w", conn.RemoteAddr(), err)
	}
	if err := d.track(r); err != nil {
		r.sock.Close()
		return nil, err
	}
	return r, nil
}

// Info implements rnic.Request.
func (r *request) Info() rnic.ConnInfo {
	return rnic.ConnInfo{
		LocalAddr: r.conn.LocalAddr(), RemoteAddr: r.conn.RemoteAddr(),
		PrivateData: r.req.PrivateData, PeerIRD: r.req.IRD, PeerORD: r.req.ORD, NoDepths: !r.req.Enhanced,
		Link: []rnic.LinkFact{
			{Name: "mpa revision", Value: strconv.Itoa(r.req.Revision)},
			{Name: "enhanced", Value: yesNo(r.req.Enhanced)},
			{Name: "crc wanted", Value: yesNo(r.req.CRC)},
			{Name: "markers wanted", Value: yesNo(r.req.Markers)},
			{Name: "peer to peer", Value: yesNo(r.req.PeerToPeer)},
		},
	}
}

// CreateQP implements rnic.Request.
func (r *request) CreateQP(cfg rnic.QPConfig) (rnic.QP, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.answered:
		return nil, fmt.Errorf("%w: request", rnic.ErrClosed)
	case r.qp != nil:
		return nil, fmt.Errorf("%w: the request has its queue pair", rnic.ErrState)
	}
	q, err := r.dev.newQP(cfg)
	if err != nil {
		return nil, err
	}
	q.cancel = r.abandon
	r.qp = q
	return q, nil
}

// answer takes the right to answer, which exists once.
func (r *request) answer(needQP bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.answered:
		return fmt.Errorf("%w: the request was answered", rnic.ErrState)
	case needQP && r.qp == nil:
		return fmt.Errorf("%w: Accept comes after CreateQP", rnic.ErrState)
	}
	r.answered = true
	return nil
}

// Accept implements rnic.Request. A failure is told by the error alone, as with Connect.
func (r *request) Accept(ctx context.Context, p rnic.ConnParams) error {
	if err := r.dev.checkParams(p); err != nil {
		return err
	}
	if err := r.answer(true); err != nil {
		return err
	}
	defer r.dev.untrack(r)
	c, params, err := r.req.Accept(ctx, p.PrivateData, p.IRD, p.ORD)
	if err != nil {
		err = fmt.Errorf("soft: accept %v: %w", r.conn.RemoteAddr(), err)
		r.qp.fail(err)
		return err
	}
	info := r.dev.connInfo(r.conn, r.sock, c, params)
	return r.qp.start(c, r.dev.streamConfig(params, r.opts, info), info)
}

// Reject implements rnic.Request.
func (r *request) Reject(private []byte) error {
	if len(private) > maxPrivate {
		return fmt.Errorf("%w: %d octets of private data, limit %d", rnic.ErrTooLarge, len(private), maxPrivate)
	}
	if err := r.answer(false); err != nil {
		return err
	}
	defer r.dev.untrack(r)
	err := r.req.Reject(context.Background(), private, 0, 0)
	r.sock.Close()
	if r.qp != nil {
		r.qp.fail(fmt.Errorf("%w: the request was rejected", rnic.ErrClosed))
	}
	return err
}

// abandon closes a request that nobody answers.
func (r *request) abandon() {
	if r.answer(false) != nil {
		return
	}
	r.sock.Close()
	r.dev.untrack(r)
	if r.qp != nil {
		r.qp.fail(fmt.Errorf("%w: the request was not answered", rnic.ErrClosed))
	}
}

// checkParams refuses what the device or the startup frames cannot do.
func (d *Device) checkParams(p rnic.ConnParams) error {
	ok := func(v, limit int) bool { return v == mpa.UlpNegotiates || v >= 0 && v <= limit }
	switch {
	case len(p.PrivateData) > maxPrivate:
		return fmt.Errorf("%w: %d octets of private data, limit %d", rnic.ErrTooLarge, len(p.PrivateData), maxPrivate)
	case !ok(p.IRD, d.attr.MaxIRD):
		return fmt.Errorf("%w: IRD %d, limit %d", rnic.ErrTooLarge, p.IRD, d.attr.MaxIRD)
	case !ok(p.ORD, d.attr.MaxORD):
		return fmt.Errorf("%w: ORD %d, limit %d", rnic.ErrTooLarge, p.ORD, d.attr.MaxORD)
	}
	return nil
}

// checkOptions refuses link options that no connection could have.
func checkOptions(o *rnic.LinkOptions) error {
	if o == nil {
		return nil
	}
	switch {
	case o.Revision < 0 || o.Revision > 2:
		return fmt.Errorf("%w: MPA revision %d", rnic.ErrBadWR, o.Revision)
	case o.MaxFPDU < 0 || o.MaxFPDU > mpa.MaxULPDU:
		return fmt.Errorf("%w: FPDU limit %d is not within 0 and %d", rnic.ErrBadWR, o.MaxFPDU, mpa.MaxULPDU)
	case o.RTR&^(rnic.RTRSend|rnic.RTRWrite|rnic.RTRRead) != 0:
		return fmt.Errorf("%w: RTR forms %#x", rnic.ErrBadWR, o.RTR)
	case o.Revision == 1 && (o.Enhanced == rnic.On || o.PeerToPeer == rnic.On),
		o.Enhanced == rnic.Off && o.PeerToPeer == rnic.On:
		return fmt.Errorf("%w: enhanced startup needs MPA revision 2, and peer-to-peer needs enhanced startup", rnic.ErrBadWR)
	}
	return nil
}

// mpaOptions translates; nil stands for the defaults.
func mpaOptions(o *rnic.LinkOptions) mpa.Options {
	if o == nil {
		return mpa.Options{}
	}
	return mpa.Options{
		Revision: o.Revision, Enhanced: mpa.Toggle(o.Enhanced), CRC: mpa.Toggle(o.CRC), Markers: mpa.Toggle(o.Markers),
		PeerToPeer: mpa.Toggle(o.PeerToPeer), RTR: mpa.RTR(o.RTR), MaxFPDU: o.MaxFPDU,
		RequestTimeout: o.RequestTimeout, ReplyTimeout: o.ReplyTimeout,
	}
}

// streamConfig is what RDMAP needs of what was agreed.
func (d *Device) streamConfig(p *mpa.Params, o *rnic.LinkOptions, info rnic.ConnInfo) rdmap.Config {
	cfg := rdmap.Config{Role: rdmap.Initiator, IRD: info.IRD, ORD: info.ORD}
	if p.Role == mpa.Responder {
		cfg.Role = rdmap.Responder
	}
	if p.PeerToPeer {
		switch {
		case p.RTR&mpa.RTRWrite != 0:
			cfg.RTR = rdmap.RTRWrite
		case p.RTR&mpa.RTRRead != 0:
			cfg.RTR = rdmap.RTRRead
		case p.RTR&mpa.RTRSend != 0:
			cfg.RTR = rdmap.RTRSend
		}
	}
	if o != nil {
		cfg.NudgeDelay = o.NudgeDelay
	}
	return cfg
}

// connInfo tells what was agreed. Depths that the consumers negotiate themselves are bounded by
// the device until then.
func (d *Device) connInfo(nc net.Conn, sock mpa.Socket, c *mpa.Conn, p *mpa.Params) rnic.ConnInfo {
	info := rnic.ConnInfo{
		LocalAddr: nc.LocalAddr(), RemoteAddr: nc.RemoteAddr(), PrivateData: p.PrivateData,
		PeerIRD: p.PeerIRD, PeerORD: p.PeerORD, IRD: p.IRD, ORD: p.ORD, NoDepths: !p.Enhanced,
	}
	if info.IRD == mpa.UlpNegotiates {
		info.IRD = d.attr.MaxIRD
	}
	if info.ORD == mpa.UlpNegotiates {
		info.ORD = d.attr.MaxORD
	}
	rtr := "none"
	if p.PeerToPeer {
		rtr = p.RTR.String()
	}
	info.Link = []rnic.LinkFact{
		{Name: "mpa role", Value: p.Role.String()},
		{Name: "mpa revision", Value: strconv.Itoa(p.Revision)},
		{Name: "enhanced", Value: yesNo(p.Enhanced)},
		{Name: "crc", Value: yesNo(p.CRC)},
		{Name: "markers in", Value: yesNo(p.MarkersIn)},
		{Name: "markers out", Value: yesNo(p.MarkersOut)},
		{Name: "peer to peer", Value: yesNo(p.PeerToPeer)},
		{Name: "rtr", Value: rtr},
		{Name: "emss", Value: strconv.Itoa(sock.EMSS())},
		{Name: "mulpdu", Value: strconv.Itoa(c.MULPDU())},
		{Name: "ird", Value: strconv.Itoa(info.IRD)},
		{Name: "ord", Value: strconv.Itoa(info.ORD)},
	}
	return info
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
