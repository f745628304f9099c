package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/cmd/internal/cli"
	"goiwarp/iscsi/initiator"
	"goiwarp/rnic/soft"
)

// TestUnreachedSaysItOnce: whatever failed below, the user reads one line that names the portal once.
func TestUnreachedSaysItOnce(t *testing.T) {
	dial := func(err error) error {
		return fmt.Errorf("iser: soft: %w", &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, Err: err})
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), "127.0.0.1:1: connection refused: nobody listens there; does the other side run, and is this its port?"},
		{syscall.ECONNREFUSED, "127.0.0.1:1: connection refused: nobody listens there; does the other side run, and is this its port?"},
		{dial(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), "127.0.0.1:1: no way to this host from here"},
		{dial(os.NewSyscallError("connect", syscall.EPERM)), "127.0.0.1:1: connect: operation not permitted"},
		{dial(&net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}), "127.0.0.1:1: no host has that name"},
		{&initiator.SessionError{Target: "iqn.x", Cause: context.DeadlineExceeded}, "127.0.0.1:1: no answer within 30s; is the address right, and does --timeout leave enough time?"},
		{errors.New("iser: soft: connect to 127.0.0.1:1: mpa: no answer"), "iser: soft: connect to 127.0.0.1:1: mpa: no answer"},
		{errors.New("iscsi: login refused"), "127.0.0.1:1: iscsi: login refused"},
	} {
		o := &connectOptions{timeout: 30 * time.Second}
		require.EqualError(t, o.unreached(initiator.Portal{Host: "127.0.0.1", Port: 1}, c.err), c.want)
	}
}

// TestDialNamesTheAddressOnce: the device leaves to package net what that says already.
func TestDialNamesTheAddressOnce(t *testing.T) {
	dev := soft.New(soft.Config{Network: soft.NewMemNetwork(soft.MemConfig{})})
	defer dev.Close()
	_, err := dev.Dial(t.Context(), "nowhere:1", nil)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.EqualError(t, err, "soft: dial mem nowhere:1: connect: connection refused")
}

func TestCopyKnowsNoStandardStreams(t *testing.T) {
	for want, args := range map[string][]string{
		"use 'iser read'":  {"cp", "iser://192.0.2.1/iqn.2026-11.com.example:x/0", "-"},
		"use 'iser write'": {"cp", "-", "iser://192.0.2.1/iqn.2026-11.com.example:x/0"},
	} {
		cmd := command()
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.ExecuteContext(t.Context())
		var usage *cli.UsageError
		require.ErrorAs(t, err, &usage)
		require.ErrorContains(t, err, want)
	}
}
