package ctl

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// How many requests there are at once. None of them waits for another one here, so that nobody is locked out by who is slow.
const (
	// maxClients bounds the connections. One more takes the place of the one that has kept the daemon waiting longest, for its request or to
	// have its answer taken.
	maxClients = 64
	// maxLong bounds the requests in progress that may take long; one more is refused. The other places are for short ones.
	maxLong = 16
	// maxOfPeer bounds the connections of one process, where the system tells whose they are; one more is refused.
	maxOfPeer = 8
)

// Service is what a control socket does.
type Service struct {
	// Handle does the commands, several at once.
	Handle Handler
	// Long tells of a command that it may take as long as initiators like; nil: none does.
	Long func(command string) bool
	// Log takes the end of the socket, if it is not wanted.
	Log *slog.Logger
}

// Serve answers requests until ctx ends, which ends those in progress, too, or until ln is closed. It returns after the last answer.
func Serve(ctx context.Context, ln net.Listener, s Service) {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	d := &desk{Service: s, peers: make(map[int]int)}
	defer d.work.Wait()
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				s.Log.Error("control socket is closed", "err", err)
			}
			return
		}
		c := &client{conn: conn, peer: peerOf(conn)}
		if err := d.admit(c); err != nil {
			c.tell(Response{Version: Version, Error: err.Error()})
			_ = conn.Close()
			continue
		}
		d.work.Go(func() {
			defer d.leave(c)
			d.serve(ctx, c)
		})
	}
}

// desk has the clients of a socket.
//
//	admit --> slow: its request arrives --> in progress --> slow: its answer is taken --> leave
type desk struct {
	Service
	work sync.WaitGroup

	mu      sync.Mutex // guards what follows
	clients int
	long    int         // in progress
	slow    list.List   // of *client that keep the daemon waiting, the longest first
	peers   map[int]int // clients by process
}

// client is one connection.
type client struct {
	conn  net.Conn
	peer  int           // its process; 0: not known
	place *list.Element // in desk.slow
}

// admit takes a client in, or says why not.
func (d *desk) admit(c *client) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case c.peer != 0 && d.peers[c.peer] >= maxOfPeer:
		return fmt.Errorf("%d requests of process %d are in progress already; wait for one of them to end", d.peers[c.peer], c.peer)
	case d.clients >= maxClients && d.slow.Len() == 0:
		return fmt.Errorf("%d requests are in progress already; wait for one of them to end", d.clients)
	case d.clients >= maxClients:
		oldest := d.slow.Remove(d.slow.Front()).(*client)
		oldest.place = nil
		_ = oldest.conn.Close()
		d.forget(oldest)
	}
	d.clients++
	d.peers[c.peer]++
	c.place = d.slow.PushBack(c)
	return nil
}

// forget gives a client's place to others. d.mu is held.
func (d *desk) forget(c *client) {
	d.clients--
	if d.peers[c.peer]--; d.peers[c.peer] == 0 {
		delete(d.peers, c.peer)
	}
}

// begin is the arrival of a client's request. ok is false if it came too late: its place is taken.
func (d *desk) begin(c *client) (ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.place == nil {
		return false
	}
	d.slow.Remove(c.place)
	c.place = nil
	return true
}

// end is the time from which on a client has its answer taken.
func (d *desk) end(c *client) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.place = d.slow.PushBack(c)
}

// leave ends a client.
func (d *desk) leave(c *client) {
	d.mu.Lock()
	if c.place != nil {
		d.slow.Remove(c.place)
		c.place = nil
		d.forget(c)
	}
	d.mu.Unlock()
	_ = c.conn.Close()
}

// serve answers one request.
func (d *desk) serve(ctx context.Context, c *client) {
	// All of it has to be there by then, however many pieces it comes in.
	_ = c.conn.SetReadDeadline(time.Now().Add(patience))
	line, err := readLine(c.conn, MaxRequest)
	if !d.begin(c) {
		return
	}
	rsp := Response{Version: Version}
	if err == nil {
		rsp.Result, err = d.attend(ctx, c, line)
	}
	if rsp.OK = err == nil; err != nil {
		rsp.Error = err.Error()
	}
	d.end(c)
	c.tell(rsp)
}

// tell sends an answer.
func (c *client) tell(rsp Response) {
	b, err := json.Marshal(rsp)
	if err != nil {
		return
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(patience))
	_, _ = c.conn.Write(append(b, '\n'))
}

// attend does a request as long as its client is there.
func (d *desk) attend(ctx context.Context, c *client, line []byte) (json.RawMessage, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_ = c.conn.SetReadDeadline(time.Time{})
	gone := make(chan struct{})
	go func() { // the client says nothing more: the end of its side is the end of its interest
		defer close(gone)
		_, _ = c.conn.Read(make([]byte, 1))
		cancel()
	}()
	defer func() {
		_ = c.conn.SetReadDeadline(time.Unix(1, 0))
		<-gone
	}()
	return answer(ctx, line, d.handle)
}

// handle does a command, if it is not one too many of those that may take long.
func (d *desk) handle(ctx context.Context, command string, args json.RawMessage) (any, error) {
	if d.Long != nil && d.Long(command) {
		if err := d.beginLong(); err != nil {
			return nil, err
		}
		defer d.endLong()
	}
	return d.Handle(ctx, command, args)
}

func (d *desk) beginLong() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.long >= maxLong {
		return fmt.Errorf("%d changes are in progress or wait for their turn already; wait for one of them to end", d.long)
	}
	d.long++
	return nil
}

func (d *desk) endLong() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.long--
}
