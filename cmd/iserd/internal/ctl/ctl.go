// Package ctl is how a program speaks with a running iserd: over a unix socket, one request and one response per connection, each a
// line of JSON.
//
//	{"version":1,"command":"lun.resize","args":{"target":"iqn...","lun":0,"size":2147483648}}
//	{"version":1,"ok":true,"result":{...}}
//
// A version that the daemon does not know, a command that it does not know and an argument that the command does not know are errors: nothing is
// guessed. Whoever may open the socket may do everything, but not keep others from it: see Serve.
package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

const (
	// Version is the protocol's.
	Version = 1
	// MaxRequest and MaxResponse bound what is read from the other side, in octets.
	MaxRequest  = 1 << 20
	MaxResponse = 256 << 20
	// patience is how long a client may take to send its request, and to take its answer.
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
	_, asking := conn.Write(append(b, '\n')) // one that is refused for what others do has its answer all the same
	line, err := readLine(conn, MaxResponse)
	if err != nil {
		if asking != nil && ctx.Err() == nil {
			return fmt.Errorf("asking iserd: %w", reason(asking))
		}
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
