package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
	"goiwarp/rnic/soft"
)

// library is how the initiator library connects.
type library struct {
	dev    *soft.Device
	domain *iser.Domain
}

func openLibrary() (*library, error) {
	l := &library{dev: soft.New(soft.Config{})}
	var err error
	if l.domain, err = iser.NewDomain(l.dev, iser.DomainConfig{}); err != nil {
		return nil, errors.Join(err, l.dev.Close())
	}
	return l, nil
}

func (l *library) close() error { return errors.Join(l.domain.Close(), l.dev.Close()) }

// run is one check of one peer.
type run struct {
	*library
	ctx  context.Context
	peer *peer
	iser string // our program
	dir  string
}

const (
	initiatorA = "iqn.2026-11.com.example:initiator-a"
	initiatorB = "iqn.2026-11.com.example:initiator-b"
)

func (r *run) options(more ...initiator.Option) []initiator.Option {
	return append([]initiator.Option{
		initiator.WithDialer("iscsi", &tcp.Dialer{}),
		initiator.WithDialer("iser", &iser.Dialer{Domain: r.domain}),
		initiator.WithInitiatorName(initiatorA),
	}, more...)
}

func (r *run) dial(target string, more ...initiator.Option) (*initiator.Session, error) {
	return initiator.Dial(r.ctx, r.peer.url(target, r.peer.luns[0].number), r.options(more...)...)
}

// session runs f with a session of the open target, and logs out.
func (r *run) session(f func(*initiator.Session) error, more ...initiator.Option) error {
	s, err := r.dial(openTarget, more...)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := f(s); err != nil {
		return err
	}
	if err := s.Logout(r.ctx); err != nil {
		return fmt.Errorf("logout: %w", err)
	}
	return nil
}

// disk is session with the first LUN.
func (r *run) disk(f func(*initiator.LUN) error, more ...initiator.Option) error {
	return r.session(func(s *initiator.Session) error { return f(s.LUN(r.peer.luns[0].number)) }, more...)
}

func (r *run) discover(addr string, chap iscsi.CHAPInitiatorConfig) ([]iscsi.TargetInfo, error) {
	var d iscsi.Dialer = &tcp.Dialer{}
	if r.peer.scheme == "iser" {
		d = &iser.Dialer{Domain: r.domain}
	}
	return initiator.Discover(r.ctx, d, initiator.Config{Addr: addr, InitiatorName: initiatorA, CHAP: chap})
}

// credentials are what CHAP is done with, by the secrets.
func credentials(own, theirs string) iscsi.CHAPInitiatorConfig {
	must := func(s string) iscsi.Secret {
		v, err := iscsi.NewSecret(s)
		if err != nil {
			panic(err)
		}
		return v
	}
	c := iscsi.CHAPInitiatorConfig{Credentials: iscsi.Credentials{User: user, Secret: must(own)}}
	if theirs != "" {
		c.Mutual = iscsi.Credentials{User: targetUser, Secret: must(theirs)}
	}
	return c
}

func withCHAP(own, theirs string) initiator.Option {
	return initiator.WithConfig(func(c *initiator.Config) { c.CHAP = credentials(own, theirs) })
}

// secretFile makes a file for iser's flags.
func (r *run) secretFile(name, secret string) (string, error) {
	file := filepath.Join(r.dir, name)
	return file, os.WriteFile(file, []byte(secret+"\n"), 0o600)
}

// tool runs iser, and gives its output; the error of one that fails has what it said.
func (r *run) tool(args ...string) (string, error) {
	cmd := exec.CommandContext(r.ctx, r.iser, args...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("iser %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}
