package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"goiwarp/iscsi/initiator"
)

// cutter is a relay whose connections can be cut.
type cutter struct {
	net.Listener
	to    string
	wg    sync.WaitGroup
	mu    sync.Mutex // guards conns
	conns []net.Conn
}

func newCutter(to string) (*cutter, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &cutter{Listener: l, to: to}
	c.wg.Go(c.serve)
	return c, nil
}

func (c *cutter) serve() {
	for {
		in, err := c.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", c.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		c.mu.Lock()
		c.conns = append(c.conns, in, out)
		c.mu.Unlock()
		for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
			c.wg.Go(func() {
				_, _ = io.Copy(way[0], way[1])
				_, _ = in.Close(), out.Close()
			})
		}
	}
}

// cut ends all connections at once, with what is on its way.
func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.conns {
		_ = n.(*net.TCPConn).SetLinger(0)
		_ = n.Close()
	}
	c.conns = nil
}

func (c *cutter) close() {
	_ = c.Close()
	c.cut()
	c.wg.Wait()
}

// recovery has a Disk work through a relay that cuts its connections, each time after some more writes.
func recovery(r *run) error {
	c, err := newCutter(r.peer.addr)
	if err != nil {
		return err
	}
	defer c.close()
	via := *r.peer
	via.addr = c.Addr().String()
	d, err := initiator.Open(r.ctx, []string{via.url(openTarget, r.peer.luns[0].number)},
		r.options(initiator.WithReplacementTimeout(time.Minute))...)
	if err != nil {
		return err
	}
	defer d.Close()
	const cuts, between = 3, 12
	var written atomic.Int64
	err = writers(r.ctx, d, 4, 16, 512, func() {
		if n := written.Add(1); n%between == 0 && n <= cuts*between {
			c.cut()
		}
	})
	if err != nil {
		return err
	}
	if lost := d.Stats().Lost; lost < cuts {
		return fmt.Errorf("%d sessions were lost, want %d", lost, cuts)
	}
	ctx, cancel := context.WithTimeout(r.ctx, 30*time.Second)
	defer cancel()
	return d.TestUnitReady(ctx)
}
