package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"strings"
	"sync"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/target"
	"goiwarp/iscsi/tcp"
)

// exampleTarget serves a disk of 16 MiB in memory, for the examples to have something to talk to.
func exampleTarget() (url string, stop func()) { return exampleTargetFor(nil) }

// exampleTargetFor lets in whom access does; nil: everybody.
func exampleTargetFor(access *target.Access) (url string, stop func()) {
	m, err := store.NewMemory(16 << 20)
	if err != nil {
		log.Fatal(err)
	}
	lu, err := scsi.NewLU(m, scsi.LUConfig{BlockSize: 512, Serial: "example-1"})
	if err != nil {
		log.Fatal(err)
	}
	dev := scsi.NewDevice(scsi.Port{})
	if err := dev.Add(0, lu); err != nil {
		log.Fatal(err)
	}
	srv, err := target.New(target.Config{Targets: []target.Target{{Name: "iqn.2026-11.com.example:disk", Device: dev, Access: access}}})
	if err != nil {
		log.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { _ = srv.Serve(tcp.NewTarget(c, tcp.Config{}, nil), target.PortalInfo{}) })
		}
	})
	return "iscsi://" + ln.Addr().String() + "/iqn.2026-11.com.example:disk/0", func() {
		_ = ln.Close()
		_ = srv.Shutdown(context.Background())
		wg.Wait()
	}
}

// A session, and its logical unit 0 as a file.
func ExampleDial() {
	url, stop := exampleTarget()
	defer stop()

	ctx := context.Background()
	s, err := initiator.Dial(ctx, url, initiator.WithDialer("iscsi", &tcp.Dialer{}), initiator.WithDigests())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	l := s.LUN(0)
	if _, err := l.WriteAt([]byte("hello, disk"), 1000); err != nil {
		log.Fatal(err)
	}
	if err := l.Flush(ctx); err != nil {
		log.Fatal(err)
	}
	b := make([]byte, 11)
	if _, err := l.ReadAt(b, 1000); err != nil {
		log.Fatal(err)
	}
	c, err := l.Capacity(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s; %d blocks of %d octets\n", b, c.Blocks, c.BlockSize)
	// Output: hello, disk; 32768 blocks of 512 octets
}

// A disk by two paths, which outlives connections.
func ExampleOpen() {
	url, stop := exampleTarget()
	defer stop()

	ctx := context.Background()
	urls := []string{url, url} // mostly two portals
	d, err := initiator.Open(ctx, urls, initiator.WithDialer("iscsi", &tcp.Dialer{}), initiator.WithPolicy(initiator.LeastQueue))
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	if _, err := d.WriteAt([]byte("two ways"), 0); err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.HasPrefix(d.Name(), "naa."), len(d.Paths()))
	// Output: true 2
}

// Many commands at once, on registered memory, without an allocation per command.
func ExampleLUN_Submit() {
	url, stop := exampleTarget()
	defer stop()

	s, err := initiator.Dial(context.Background(), url, initiator.WithDialer("iscsi", &tcp.Dialer{}))
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	l := s.LUN(0)
	if err := l.TestUnitReady(context.Background()); err != nil { // takes the first unit attention
		log.Fatal(err)
	}

	const depth, size = 8, 4096
	done := make(chan *initiator.Request, depth)
	reqs := make([]*initiator.Request, depth)
	for i := range reqs {
		buf, err := l.Alloc(size)
		if err != nil {
			log.Fatal(err)
		}
		defer buf.Release()
		copy(buf.Bytes(), bytes.Repeat([]byte{byte(i)}, size))
		reqs[i] = &initiator.Request{Done: initiator.Notify(done)}
		l.PrepareWrite(reqs[i], uint64(i*size/512), size/512, 512, buf)
	}
	if err := l.Submit(reqs...); err != nil {
		log.Fatal(err)
	}
	for range reqs {
		if r := <-done; r.Err != nil {
			log.Fatal(r.Err)
		}
	}
	fmt.Println("written")
	// Output: written
}

// What a failed command tells.
func ExampleLUN_CompareAndWrite() {
	url, stop := exampleTarget()
	defer stop()

	ctx := context.Background()
	s, err := initiator.Dial(ctx, url, initiator.WithDialer("iscsi", &tcp.Dialer{}))
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	zeros, ones := make([]byte, 512), bytes.Repeat([]byte{1}, 512)
	fmt.Println(s.LUN(0).CompareAndWrite(ctx, 0, zeros, ones))
	err = s.LUN(0).CompareAndWrite(ctx, 0, zeros, ones)
	fmt.Println(errors.Is(err, scsi.KeyMiscompare.Err()))
	var e *scsi.Error
	if errors.As(err, &e) {
		fmt.Println(e.Status, "|", e.Sense.Key, "|", e.Sense.Code)
	}
	// Output:
	// <nil>
	// true
	// CHECK CONDITION | MISCOMPARE | miscompare during verify operation (1d/00)
}
