package mpa

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// tcpPair returns the two ends of a loopback TCP connection.
func tcpPair(t testing.TB) (Socket, Socket) {
	t.Helper()
	a, b := tcpConns(t)
	return NewTCPSocket(a), NewTCPSocket(b)
}

func tcpConns(t testing.TB) (*net.TCPConn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	type result struct {
		c   net.Conn
		err error
	}
	accepted := make(chan result, 1)
	go func() {
		c, err := l.Accept()
		accepted <- result{c, err}
	}()
	a, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	r := <-accepted
	require.NoError(t, r.err)
	t.Cleanup(func() { a.Close(); r.c.Close() })
	return a.(*net.TCPConn), r.c.(*net.TCPConn)
}

// start runs both sides of a startup on the two sockets.
func start(t testing.TB, a, b Socket, ao, bo Options) (*Conn, *Conn) {
	t.Helper()
	type result struct {
		c   *Conn
		err error
	}
	answered := make(chan result, 1)
	go func() {
		r, err := ReadRequest(context.Background(), b, nil, bo)
		if err != nil {
			answered <- result{nil, err}
			return
		}
		c, _, err := r.Accept(context.Background(), nil, 16, 16)
		answered <- result{c, err}
	}()
	ca, _, err := Initiate(context.Background(), a, ao, nil, 16, 16)
	require.NoError(t, err)
	r := <-answered
	require.NoError(t, r.err)
	t.Cleanup(func() { ca.Close(); r.c.Close() })
	return ca, r.c
}

// direct returns two Conns in full operation on the sockets without a startup; the second one may
// send at once, too.
func direct(a, b Socket, crc, markers bool, maxFPDU int) (*Conn, *Conn) {
	p := Params{CRC: crc, MarkersIn: markers, MarkersOut: markers}
	q := p
	return newConn(a, &p, maxFPDU), newConn(b, &q, maxFPDU)
}
