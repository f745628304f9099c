package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// halfOpen connects and never sends a Request: the server must end the connection by itself.
func halfOpen(ctx context.Context, addr string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	start := time.Now()
	if err := c.SetReadDeadline(start.Add(60 * time.Second)); err != nil {
		return err
	}
	n, err := c.Read(make([]byte, 1))
	var timeout net.Error
	if n > 0 || errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("the server holds on to it: %d octets, %w", n, err)
	}
	if !errors.Is(err, io.EOF) {
		fmt.Println("ended with", err)
	}
	fmt.Printf("hung up after %v\n", time.Since(start).Round(100*time.Millisecond))
	return nil
}
