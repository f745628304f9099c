package main

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"goiwarp/cmd/internal/cli"
	"goiwarp/iscsi/initiator"
	"goiwarp/iser"
	"goiwarp/rnic/soft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bound guards against hanging.
const bound = time.Minute

// execute runs iserd with args until stop is called, and returns its standard output and how it ended.
func execute(t *testing.T, args ...string) (out *bufio.Scanner, stop func(), ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	pr, pw := io.Pipe()
	cmd := command()
	cmd.SetArgs(args)
	cmd.SetOut(pw)
	cmd.SetErr(io.Discard)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	end := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		pw.Close()
		end <- err
	}()
	return bufio.NewScanner(pr), cancel, end
}

// TestListenRDMA uses a disk through the RDMA device's own listener.
func TestListenRDMA(t *testing.T) {
	const name = "iqn.2026-11.com.example:test"
	lines, stop, ended := execute(t, "--lun", "mem:4MiB", "--target", name, "--listen", "127.0.0.1:0", "--listen-rdma", "127.0.0.1:0")
	var addr string
	for range 2 {
		require.True(t, lines.Scan())
		var ok bool
		addr, ok = strings.CutPrefix(lines.Text(), "ready: "+name+" on ")
		require.True(t, ok, lines.Text())
	}

	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	dev := soft.New(soft.Config{})
	defer dev.Close()
	domain, err := iser.NewDomain(dev, iser.DomainConfig{})
	require.NoError(t, err)
	defer domain.Close()
	s, err := initiator.Login(ctx, &iser.Dialer{Domain: domain}, initiator.Config{Addr: addr, TargetName: name})
	require.NoError(t, err)
	luns, err := s.ReportLUNs(ctx)
	require.NoError(t, err)
	require.Len(t, luns, 1)
	require.NoError(t, s.Logout(ctx))
	s.Close()
	stop()
	require.NoError(t, <-ended)
}

// TestRDMAMistakes: each is one line, and nothing is left listening.
func TestRDMAMistakes(t *testing.T) {
	for _, c := range []struct {
		want string
		args []string
	}{
		{"--listen-rdma \"here\": want ADDRESS:PORT", []string{"--listen-rdma", "here"}},
		{"--listen-rdma 127.0.0.1:99999", []string{"--listen-rdma", "127.0.0.1:99999"}},
		{"--rnic verbs:nosuch0: verbs: ", []string{"--rnic", "verbs:nosuch0"}},
		{"want soft, verbs", []string{"--rnic", "x"}},
	} {
		_, stop, ended := execute(t, append([]string{"--lun", "mem:1MiB", "--listen", "127.0.0.1:0"}, c.args...)...)
		err := <-ended
		stop()
		require.ErrorContains(t, err, c.want)
		require.NotContains(t, cli.OneLine(err), "\n")
	}
}
