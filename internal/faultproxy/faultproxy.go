// Package faultproxy stands between two ends of a byte stream and does what networks do: it cuts,
// stalls, corrupts and re-chunks, at chosen octet offsets of a chosen direction, so that a fault
// hits the same octet in every run.
//
//	client ---> Proxy.Addr --- ToTarget ----> target
//	       <--------------- FromTarget <-----
//
// It runs on loopback TCP (New) and on any network that dials and listens (NewOn), an in-memory
// one under testing/synctest included.
package faultproxy

import (
	"context"
	"net"
	"sync"
	"testing"
)

// Network makes and takes connections.
type Network interface {
	Dial(ctx context.Context, addr string) (net.Conn, error)
	Listen(ctx context.Context, addr string) (net.Listener, error)
}

// Direction is one of the two halves of a connection.
type Direction int

// Directions.
const (
	ToTarget Direction = iota
	FromTarget
)

// Action is what happens when a Step's offset is reached.
type Action int

// Actions.
const (
	// Cut ends both halves at once, with a TCP reset where there is TCP: octets below the offset
	// were forwarded, none from it on.
	Cut Action = iota
	// Finish ends this half as a graceful close does; the other half goes on.
	Finish
	// Corrupt flips the bits of Mask (0 means 0x01) in the octet at the offset.
	Corrupt
	// Stall forwards nothing more in this direction until Release.
	Stall
)

// Step is one fault.
type Step struct {
	Dir    Direction
	Offset int64 // octets of this direction that pass before it
	Do     Action
	Mask   byte
}

// Script is what the proxy does to each connection.
type Script struct {
	// Steps of one direction stand in the order of their offsets.
	Steps []Step
	// Chunk, if above 0, forwards at most so many octets per write.
	Chunk int
	// Skip lets so many connections pass untouched first.
	Skip int
}

// Proxy is a running proxy.
type Proxy struct {
	network Network
	target  string
	script  Script
	ln      net.Listener

	reached []chan struct{} // one per step, closed when it was done for the first time
	once    []sync.Once
	release chan struct{}
	freed   sync.Once

	mu     sync.Mutex // guards what follows
	conns  map[net.Conn]struct{}
	closed bool
	seen   int

	wg sync.WaitGroup
}

// New starts a proxy on a free loopback port in front of target ("host:port"). The test's cleanup
// ends it.
func New(t testing.TB, target string, s Script) *Proxy {
	t.Helper()
	return NewOn(t, tcp{}, "127.0.0.1:0", target, s)
}

// NewOn starts a proxy that listens on addr of a network.
func NewOn(t testing.TB, n Network, addr, target string, s Script) *Proxy {
	t.Helper()
	ln, err := n.Listen(context.Background(), addr)
	if err != nil {
		t.Fatalf("faultproxy: listen: %v", err)
	}
	p := &Proxy{
		network: n, target: target, script: s, ln: ln,
		reached: make([]chan struct{}, len(s.Steps)), once: make([]sync.Once, len(s.Steps)),
		release: make(chan struct{}), conns: make(map[net.Conn]struct{}),
	}
	for i := range p.reached {
		p.reached[i] = make(chan struct{})
	}
	p.wg.Go(p.accept)
	t.Cleanup(p.Close)
	return p
}

// Addr is where clients connect.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Reached is closed once step i has been done on some connection.
func (p *Proxy) Reached(i int) <-chan struct{} { return p.reached[i] }

// Release ends all stalls, those to come included.
func (p *Proxy) Release() { p.freed.Do(func() { close(p.release) }) }

// CutAll ends every connection now.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		abort(c)
	}
}

// Close ends the proxy and waits for its goroutines.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Release()
	p.ln.Close()
	p.CutAll()
	p.wg.Wait()
}

// track takes charge of a connection; false means that the proxy is closed.
func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		abort(c)
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) untrack(cs ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range cs {
		delete(p.conns, c)
	}
}

func (p *Proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		if !p.track(c) {
			return
		}
		p.mu.Lock()
		steps := p.script.Steps
		if p.seen < p.script.Skip {
			steps = nil
		}
		p.seen++
		p.mu.Unlock()
		p.wg.Go(func() { p.serve(c, steps) })
	}
}

func (p *Proxy) serve(client net.Conn, steps []Step) {
	defer p.untrack(client)
	target, err := p.network.Dial(context.Background(), p.target)
	if err != nil {
		abort(client)
		return
	}
	if !p.track(target) {
		abort(client)
		return
	}
	defer p.untrack(target)
	var halves sync.WaitGroup
	halves.Go(func() { p.forward(target, client, ToTarget, steps) })
	halves.Go(func() { p.forward(client, target, FromTarget, steps) })
	halves.Wait()
	client.Close()
	target.Close()
}

// forward copies one half and plays the steps of its direction.
func (p *Proxy) forward(dst, src net.Conn, dir Direction, steps []Step) {
	size := 32 << 10
	if p.script.Chunk > 0 {
		size = p.script.Chunk
	}
	buf := make([]byte, size)
	var at int64 // octets of this half that were read
	next := 0    // index into steps
	for {
		n, err := src.Read(buf)
		data := buf[:n]
		for len(data) > 0 {
			for next < len(steps) && steps[next].Dir != dir {
				next++
			}
			if next == len(steps) || steps[next].Offset >= at+int64(len(data)) {
				if !write(dst, data) {
					abort(src)
					return
				}
				at += int64(len(data))
				break
			}
			s := steps[next]
			k := max(s.Offset-at, 0)
			if k > 0 && !write(dst, data[:k]) {
				abort(src)
				return
			}
			data, at = data[k:], at+k
			switch s.Do {
			case Cut:
				abort(dst)
				abort(src)
				p.mark(next)
				return
			case Finish:
				closeWrite(dst)
				p.mark(next)
				return
			case Corrupt:
				mask := s.Mask
				if mask == 0 {
					mask = 1
				}
				data[0] ^= mask
				p.mark(next)
			case Stall:
				p.mark(next)
				<-p.release
			}
			next++
		}
		if err != nil {
			closeWrite(dst)
			return
		}
	}
}

func (p *Proxy) mark(i int) { p.once[i].Do(func() { close(p.reached[i]) }) }

func write(c net.Conn, b []byte) bool {
	_, err := c.Write(b)
	return err == nil
}

// closeWrite passes on the end of a half.
func closeWrite(c net.Conn) {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		h.CloseWrite()
		return
	}
	c.Close()
}

// abort closes without a graceful end.
func abort(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	c.Close()
}

// tcp is the network of the host.
type tcp struct{}

func (tcp) Dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

func (tcp) Listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", addr)
}
