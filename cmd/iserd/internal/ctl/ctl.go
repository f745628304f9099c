// Package ctl is how a program speaks with a running iserd: over a unix socket, one request and one response per connection, each a
// line of JSON.
//
//	{"version":1,"command":"lun.resize","args":{"target":"iqn...","lun":0,"size":2147483648}}
//	{"version":1,"ok":true,"result":{...}}
//
// A version that the daemon does not know, a command that it does not know and an argument that the command does not know are errors: nothing is
// guessed. Whoever may open the socket may do everything.
package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// Version is the protocol's.
	Version = 1
	// MaxRequest and MaxResponse bound what is read from the other side, in octets.
	MaxRequest  = 1 << 20
	MaxResponse = 256 << 20
	// maxClients bounds the requests that are in progress at once; more wait.
	maxClients = 16
	// patience is how long a client may take for its request.
	patience = 5 * time.Second
)

// Request is what a client asks.
type Request struct {
	Version int             `json:"version"`
	Command string          `json:"command"`
	Args    json.RawMessage `json:"args,omitempty"`
}

// Response is what it gets.
type Response struct {
	Version int             `json:"version"`
	OK      bool            `json:"ok"`
	Error   string          `json:"error,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
}

// ErrUnknownCommand is the answer to a command that the daemon does not have.
var ErrUnknownCommand = errors.New("unknown command; are iserd and 'iserd ctl' of the same version?")

// Handler does one command. ctx ends when the client goes away.
type Handler func(ctx context.Context, command string, args json.RawMessage) (any, error)

// Args reads arguments strictly.
func Args(raw json.RawMessage, into any) error {
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("arguments: %w", err)
	}
	return nil
}

// Listen opens the socket at path, for its owner alone. What a daemon that is gone has left there is replaced; one that answers is not.
func Listen(path string) (net.Listener, error) {
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("control socket %s: another iserd serves it", path)
	}
	if fi, err := os.Lstat(path); err == nil {
		if fi.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("control socket %s: something else is there", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("control socket: %w", err)
		}
	}
	ln, err := listenPrivate(path)
	if err != nil {
		return nil, fmt.Errorf("control socket %s: %w", path, err)
	}
	return ln, nil
}

// Serve answers requests until ctx ends, and returns after the last answer.
func Serve(ctx context.Context, ln net.Listener, h Handler, log *slog.Logger) {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	var clients sync.WaitGroup
	defer clients.Wait()
	places := make(chan struct{}, maxClients)
	for {
		places <- struct{}{}
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() == nil {
				log.Error("control socket is closed", "err", err)
			}
			return
		}
		clients.Go(func() {
			defer func() { <-places }()
			serve(ctx, conn, h)
		})
	}
}

// serve answers one request.
func serve(ctx context.Context, conn net.Conn, h Handler) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	rsp := Response{Version: Version}
	line, err := readLine(conn, MaxRequest)
	if err == nil {
		_ = conn.SetReadDeadline(time.Time{})
		ctx, cancel := context.WithCancel(ctx)
		gone := make(chan struct{})
		go func() { // the client says nothing more: the end of its side is the end of its interest
			defer close(gone)
			_, _ = conn.Read(make([]byte, 1))
			cancel()
		}()
		rsp.Result, err = answer(ctx, line, h)
		_ = conn.SetReadDeadline(time.Unix(1, 0))
		<-gone
		cancel()
	}
	if rsp.OK = err == nil; err != nil {
		rsp.Error = err.Error()
	}
	b, err := json.Marshal(rsp)
	if err != nil {
		return
	}
	_ = conn.SetWriteDeadline(time.Now().Add(patience))
	_, _ = conn.Write(append(b, '\n'))
}

func answer(ctx context.Context, line []byte, h Handler) (json.RawMessage, error) {
	var r Request
	if err := json.Unmarshal(line, &r); err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	if r.Version != Version {
		return nil, fmt.Errorf("version %d of the control protocol is not known here (version %d is)", r.Version, Version)
	}
	v, err := h(ctx, r.Command, r.Args)
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// readLine reads up to a line's end.
func readLine(r io.Reader, most int) ([]byte, error) {
	var b []byte
	room := make([]byte, 4096)
	for {
		n, err := r.Read(room)
		b = append(b, room[:n]...)
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			return b[:i], nil
		}
		if len(b) > most {
			return nil, fmt.Errorf("more than %d octets", most)
		}
		if err != nil {
			return nil, err
		}
	}
}

// Call asks the daemon at path.
func Call(ctx context.Context, path, command string, args, result any) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("no iserd answers on %s: %w; does it run, with --control or control = in its configuration?", path, reason(err))
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := json.Marshal(args)
	if err != nil {
		return err
	}
	b, err := json.Marshal(Request{Version, command, raw})
	if err != nil {
		return err
	}
	if _, err := conn.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("asking iserd: %w", reason(err))
	}
	line, err := readLine(conn, MaxResponse)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("iserd does not answer: %w", err)
	}
	var rsp Response
	if err := json.Unmarshal(line, &rsp); err != nil {
		return fmt.Errorf("iserd's answer: %w", err)
	}
	if !rsp.OK {
		return errors.New(rsp.Error)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(rsp.Result, result)
}

// reason takes the address off a network error.
func reason(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
