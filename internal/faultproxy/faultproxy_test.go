package faultproxy

import (
	"bytes"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start gives the two ends of one connection through a proxy.
func start(t *testing.T, s Script) (*Proxy, net.Conn, net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	p := New(t, ln.Addr().String(), s)
	client, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	server, err := ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { client.Close(); server.Close() })
	return p, client, server
}

func TestPassesBothHalvesAndTheirEnds(t *testing.T) {
	_, client, server := start(t, Script{Chunk: 3})
	go func() {
		client.Write([]byte("request"))
		client.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(server)
	require.NoError(t, err)
	require.Equal(t, "request", string(got))
	server.Write([]byte("answer"))
	server.Close()
	got, err = io.ReadAll(client)
	require.NoError(t, err)
	require.Equal(t, "answer", string(got))
}

func TestCorruptsChosenOctets(t *testing.T) {
	p, client, server := start(t, Script{Steps: []Step{
		{Dir: ToTarget, Offset: 2, Do: Corrupt, Mask: 0x80},
		{Dir: ToTarget, Offset: 3, Do: Corrupt},
		{Dir: FromTarget, Offset: 0, Do: Corrupt},
	}})
	client.Write(make([]byte, 5))
	got := make([]byte, 5)
	_, err := io.ReadFull(server, got)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0x80, 1, 0}, got)
	<-p.Reached(1)
	server.Write([]byte{4})
	_, err = io.ReadFull(client, got[:1])
	require.NoError(t, err)
	require.Equal(t, byte(5), got[0])
}

func TestCutsAtTheOffset(t *testing.T) {
	p, client, server := start(t, Script{Steps: []Step{{Dir: ToTarget, Offset: 100, Do: Cut}}})
	go client.Write(make([]byte, 200))
	got, _ := io.ReadAll(server) // a reset may overtake octets that the kernel still holds
	require.LessOrEqual(t, len(got), 100)
	<-p.Reached(0)
	_, err := client.Read(make([]byte, 1))
	require.Error(t, err)
}

func TestFinishesOneHalf(t *testing.T) {
	_, client, server := start(t, Script{Steps: []Step{{Dir: ToTarget, Offset: 10, Do: Finish}}})
	client.Write(bytes.Repeat([]byte("x"), 20))
	got, err := io.ReadAll(server)
	require.NoError(t, err)
	require.Len(t, got, 10)
	server.Write([]byte("still here"))
	got = make([]byte, 10)
	_, err = io.ReadFull(client, got)
	require.NoError(t, err)
}

func TestStallsUntilReleased(t *testing.T) {
	p, client, server := start(t, Script{Steps: []Step{{Dir: ToTarget, Offset: 1, Do: Stall}}})
	client.Write([]byte("ab"))
	got := make([]byte, 2)
	_, err := io.ReadFull(server, got[:1])
	require.NoError(t, err)
	<-p.Reached(0)
	p.Release()
	_, err = io.ReadFull(server, got[1:])
	require.NoError(t, err)
	require.Equal(t, "ab", string(got))
}

func TestSkipsConnections(t *testing.T) {
	p, client, server := start(t, Script{Skip: 1, Steps: []Step{{Dir: ToTarget, Do: Cut}}})
	client.Write([]byte("a"))
	_, err := io.ReadFull(server, make([]byte, 1))
	require.NoError(t, err)
	second, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	defer second.Close()
	second.Write([]byte("b"))
	<-p.Reached(0)
}
