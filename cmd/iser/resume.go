package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"goiwarp/iscsi/store"
)

// copyState is how far a copy has come, as it is kept in a file.
type copyState struct {
	Version     int    `json:"version"`
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Size        int64  `json:"size"`
	// Done octets from the beginning are durable at the destination.
	Done int64 `json:"done"`
}

const copyStateVersion = 1

// loadState reads a copy's state; there need not be one.
func loadState(path string) (*copyState, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := new(copyState)
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(s); err != nil || s.Version != copyStateVersion || s.Done < 0 || s.Done > s.Size {
		return nil, fmt.Errorf("%s does not hold the state of a copy; remove it to begin anew", path)
	}
	return s, nil
}

// save replaces the file in one step, durably: after a crash there is the old state or the new one.
func (s *copyState) save(path string) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return store.ReplaceFile(path, append(b, '\n'), 0o600)
}

// same says what differs between the copy that s is of and another one.
func (s *copyState) same(path string, o *copyState) error {
	for _, f := range []struct{ what, was, is string }{
		{"source", s.Source, o.Source}, {"destination", s.Destination, o.Destination}, {"size", fmt.Sprint(s.Size), fmt.Sprint(o.Size)},
	} {
		if f.was != f.is {
			return fmt.Errorf("%s belongs to another copy: the %s was %s, and is %s; remove the file to begin anew", path, f.what, f.was, f.is)
		}
	}
	return nil
}

// resume finds out where to go on, and lets the copier keep its progress.
func (c *copier) resume(ctx context.Context) error {
	now := &copyState{Version: copyStateVersion, Size: c.size}
	var err error
	if now.Source, err = c.src.Identity(ctx, true); err != nil {
		return err
	}
	if now.Destination, err = c.dst.Identity(ctx, false); err != nil {
		return err
	}
	was, err := loadState(c.state)
	if err != nil {
		return err
	}
	if was != nil {
		if err := was.same(c.state, now); err != nil {
			return err
		}
		c.from = was.Done
	}
	now.Done = c.from
	if err := now.save(c.state); err != nil { // a place where nothing can be kept is better known now than later
		return err
	}
	c.note = func(done int64) error {
		now.Done = done
		return now.save(c.state)
	}
	return nil
}
