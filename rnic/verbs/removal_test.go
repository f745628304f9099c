//go:build verbs && cgo && linux

package verbs_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"goiwarp/rnic"
	"goiwarp/rnic/verbs"
)

// TestRemoval deletes the device under a connection. It does so to another process, since librdmacm does not
// get over the removal of its last device.
func TestRemoval(t *testing.T) {
	name, addr := address(t)
	if os.Getenv("VERBS_REMOVAL") != "" {
		removed(t, name, addr)
		return
	}
	if os.Getuid() != 0 {
		t.Skip("deleting a device needs root")
	}
	sys := "/sys/class/infiniband/" + name
	desc, err := os.ReadFile(sys + "/node_desc")
	require.NoError(t, err)
	kind, ok := map[string]string{"Software iWARP stack": "siw", "rxe": "rxe"}[strings.TrimSpace(string(desc))]
	if !ok {
		t.Skip("only a device in software can be deleted")
	}
	netdev := interfaceOf(t, addr)

	cmd := exec.Command(os.Args[0], "-test.run=^TestRemoval$", "-test.v")
	cmd.Env = append(os.Environ(), "VERBS_REMOVAL=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "connected" {
		t.Log(lines.Text())
	}
	gone := make(chan error, 1)
	start := time.Now()
	go func() { gone <- netlink.RdmaLinkDel(name) }()
	var rest strings.Builder
	for lines.Scan() {
		rest.WriteString(lines.Text() + "\n")
	}
	require.NoError(t, cmd.Wait(), rest.String())
	require.NoError(t, <-gone)
	t.Logf("removed within %v", time.Since(start))
	require.Contains(t, rest.String(), "device closed before the process ended")
	require.NoError(t, netlink.RdmaLinkAdd(name, kind, netdev))
}

// interfaceOf is the name of the network interface that has an address.
func interfaceOf(t *testing.T, addr string) string {
	t.Helper()
	host, _, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	all, err := net.Interfaces()
	require.NoError(t, err)
	for _, i := range all {
		addrs, err := i.Addrs()
		require.NoError(t, err)
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(net.ParseIP(host)) {
				return i.Name
			}
		}
	}
	t.Fatalf("no interface has %s", host)
	return ""
}

// removed is the process whose device goes away.
func removed(t *testing.T, name, addr string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	dev, err := verbs.Open(verbs.Config{Name: name})
	require.NoError(t, err)
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	cq, err := dev.CreateCQ(rnic.CQConfig{})
	require.NoError(t, err)
	mr, err := pd.AllocMR(4096, rnic.LocalWrite)
	require.NoError(t, err)
	events := make(chan rnic.Event, 8)
	cfg := rnic.QPConfig{PD: pd, SendCQ: cq, RecvCQ: cq, OnEvent: func(e rnic.Event) {
		if e.Kind != rnic.Established {
			events <- e
		}
	}}
	ln, err := dev.Listen(ctx, addr, nil)
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() {
		req, err := ln.Accept(ctx)
		if err == nil {
			if _, err = req.CreateQP(cfg); err == nil {
				err = req.Accept(ctx, rnic.ConnParams{})
			}
		}
		served <- err
	}()
	k, err := dev.Dial(ctx, ln.Addr().String(), nil)
	require.NoError(t, err)
	qp, err := k.CreateQP(cfg)
	require.NoError(t, err)
	require.NoError(t, qp.PostRecv(&rnic.RecvWR{ID: 7, SGE: []rnic.SGE{{MR: mr, Len: 100}}}))
	_, err = k.Connect(ctx, rnic.ConnParams{})
	require.NoError(t, err)
	require.NoError(t, <-served)
	fmt.Println("connected")

	for range 2 { // both ends
		select {
		case e := <-events:
			fmt.Println("event:", e.Kind, e.Err)
		case <-ctx.Done():
			t.Fatal("no event of the end")
		}
	}
	require.NoError(t, cq.Wait(ctx))
	var wc [1]rnic.Completion
	n, err := cq.Poll(wc[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.EqualValues(t, 7, wc[0].ID)
	require.Equal(t, rnic.StatusFlushed, wc[0].Status)
	// The device closes itself. The kernel takes it off the list when that is done.
	for {
		if _, err := os.Stat("/sys/class/infiniband/" + name); err != nil {
			break
		}
		require.NoError(t, ctx.Err(), "the removal still waits for this process")
		time.Sleep(10 * time.Millisecond)
	}
	require.NoError(t, dev.Close())
	_, err = dev.AllocPD()
	require.ErrorIs(t, err, rnic.ErrClosed)
	_, err = ln.Accept(ctx)
	require.ErrorIs(t, err, rnic.ErrClosed)
	require.ErrorContains(t, err, "the device was removed")
	fmt.Println("device closed before the process ended")
}
