package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/target"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
	"goiwarp/rnic/soft"
)

// exampleLUN logs in to a target made for the example.
func exampleLUN(opts ...initiator.Option) (l *initiator.LUN, stop func()) {
	url, end := exampleTarget()
	s, err := initiator.Dial(context.Background(), url, append(opts, initiator.WithDialer("iscsi", &tcp.Dialer{}))...)
	if err != nil {
		log.Fatal(err)
	}
	return s.LUN(0), func() {
		s.Close()
		end()
	}
}

// A command ends by a call of its Done: on the goroutine that reads the connection, which may submit the next one.
func ExampleRequest() {
	l, stop := exampleLUN()
	defer stop()

	ctx := context.Background()
	if err := l.TestUnitReady(ctx); err != nil { // takes the first unit attention
		log.Fatal(err)
	}
	buf, err := l.Alloc(4096)
	if err != nil {
		log.Fatal(err)
	}
	defer buf.Release()

	ended := make(chan error)
	var lba uint64
	r := &initiator.Request{}
	r.Done = func(r *initiator.Request) {
		if lba += 8; r.Err != nil || lba == 32 {
			ended <- r.Err
			return
		}
		l.PrepareRead(r, lba, 8, 512, buf) // the same Request, again
		if err := l.Submit(r); err != nil {
			ended <- err
		}
	}
	l.PrepareRead(r, lba, 8, 512, buf)
	if err := l.Submit(r); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-ended, lba)
	// Output: <nil> 32
}

// Any command, with its data in memory. What is short of the octets asked for is the residual.
func ExampleLUN_Do() {
	l, stop := exampleLUN()
	defer stop()

	ctx := context.Background()
	if err := l.TestUnitReady(ctx); err != nil {
		log.Fatal(err)
	}
	in := make([]byte, 64)
	inquiry := []byte{scsi.OpInquiry, 1, 0x80, 0, byte(len(in)), 0} // the page of the serial number
	res, err := l.Do(ctx, inquiry, in, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %q, residual %d\n", res.Status, in[4:res.In], res.Residual)
	// Output: GOOD: "example-1", residual 51
}

// A READ of any length in 2 MiB of memory.
func ExampleLUN_ReadStream() {
	l, stop := exampleLUN()
	defer stop()

	var sum [1]byte
	cdb := scsi.Read16(0, 32768, 0) // 16 MiB
	n, err := l.ReadStream(context.Background(), cdb[:], 16<<20, writerFunc(func(p []byte) (int, error) {
		for _, c := range p {
			sum[0] += c
		}
		return len(p), nil
	}))
	fmt.Println(n, err, sum[0])
	// Output: 16777216 <nil> 0
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A WRITE of any length in 2 MiB of memory.
func ExampleLUN_WriteStream() {
	l, stop := exampleLUN()
	defer stop()

	ctx := context.Background()
	image := bytes.NewReader(bytes.Repeat([]byte("0123456789abcdef"), 4<<20/16))
	cdb := scsi.Write16(2048, 8192, 0)
	n, err := l.WriteStream(ctx, cdb[:], 4<<20, image)
	fmt.Println(n, err)
	b := make([]byte, 16)
	_, err = l.ReadAtContext(ctx, b, 5<<20-16)
	fmt.Printf("%s %v\n", b, err)
	// Output:
	// 4194304 <nil>
	// 0123456789abcdef <nil>
}

// Which blocks a disk holds, and how to give some back.
func ExampleLUN_GetLBAStatus() {
	l, stop := exampleLUN()
	defer stop()

	ctx := context.Background()
	if _, err := l.WriteAt(bytes.Repeat([]byte{1}, 1<<20), 0); err != nil {
		log.Fatal(err)
	}
	show := func() {
		status, err := l.GetLBAStatus(ctx, 0)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(status)
	}
	show()
	if err := l.Unmap(ctx, scsi.Extent{LBA: 0, Blocks: 1024}); err != nil {
		log.Fatal(err)
	}
	show()
	// Output:
	// [{0 2048 mapped} {2048 30720 deallocated}]
	// [{0 1024 deallocated} {1024 1024 mapped} {2048 30720 deallocated}]
}

// A disk that only who is registered may write.
func ExampleLUN_Reserve() {
	l, stop := exampleLUN()
	defer stop()

	ctx := context.Background()
	const key = 0xabc123
	if err := l.Register(ctx, 0, key, initiator.RegisterOptions{}); err != nil {
		log.Fatal(err)
	}
	if err := l.Reserve(ctx, key, initiator.WriteExclusiveRegistrantsOnly); err != nil {
		log.Fatal(err)
	}
	r, err := l.Reservation(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v, held with key %x\n", r.Type, r.Key)
	if err := l.Release(ctx, key, initiator.WriteExclusiveRegistrantsOnly); err != nil {
		log.Fatal(err)
	}
	fmt.Println(l.Register(ctx, key, 0, initiator.RegisterOptions{})) // not registered any more
	// Output:
	// write exclusive, registrants only, held with key abc123
	// <nil>
}

// Every key of the negotiation is a field of Settings; what came of it is in Params.
func ExampleWithSettings() {
	url, stop := exampleTarget()
	defer stop()

	s, err := initiator.Dial(context.Background(), url, initiator.WithDialer("iscsi", &tcp.Dialer{}),
		initiator.WithSettings(func(s *iscsi.Settings) {
			s.HeaderDigest = []string{"CRC32C", "None"}
			s.MaxBurstLength = 65536
			s.ErrorRecoveryLevel = 2
		}))
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	p := s.Params()
	fmt.Println(p.HeaderDigest, p.MaxBurstLength, p.ErrorRecoveryLevel)
	// Output: true 65536 2
}

// What a session does, for metrics and for people.
func ExampleWithHooks() {
	var commands int
	l, stop := exampleLUN(initiator.WithHooks(initiator.Hooks{
		Command:   func(*initiator.CommandInfo) { commands++ },
		Attention: func(_ uint64, s scsi.Sense) { fmt.Println(s.Code) },
	}))
	if err := l.TestUnitReady(context.Background()); err != nil {
		log.Fatal(err)
	}
	stop() // has waited for all hooks
	fmt.Println(commands, "commands")
	// Output:
	// power on, reset, or bus device reset occurred (29/00)
	// 2 commands
}

// Proof of both sides. A program reads its secrets from where only it can.
func ExampleWithCHAP() {
	secret := func(s string) iscsi.Secret {
		x, err := iscsi.NewSecret(s)
		if err != nil {
			log.Fatal(err)
		}
		return x
	}
	alice, store1 := iscsi.Credentials{User: "alice", Secret: secret("what alice knows")}, iscsi.Credentials{User: "store1", Secret: secret("what store1 knows")}
	url, stop := exampleTargetFor(&target.Access{Rules: []target.AccessRule{{Users: []iscsi.Credentials{alice}, Mutual: store1}}})
	defer stop()

	s, err := initiator.Dial(context.Background(), url, initiator.WithDialer("iscsi", &tcp.Dialer{}),
		initiator.WithCHAP(iscsi.CHAPInitiatorConfig{Credentials: alice, Mutual: store1}))
	if err != nil {
		log.Fatal(err)
	}
	s.Close()
	_, err = initiator.Dial(context.Background(), url, initiator.WithDialer("iscsi", &tcp.Dialer{}))
	var refused *iscsi.LoginError
	fmt.Println(errors.As(err, &refused), alice.Secret)
	// Output: true [secret]
}

// Over iSER, with an RNIC in software: one Domain has the memory of all connections.
func ExampleDial_iser() {
	dom, err := iser.NewDomain(soft.New(soft.Config{}), iser.DomainConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer dom.Close()
	dialers := []initiator.Option{
		initiator.WithDialer("iscsi", &tcp.Dialer{}),
		initiator.WithDialer("iser", &iser.Dialer{Domain: dom, Config: iser.Config{BufferMemory: 64 << 20}}),
	}
	s, err := initiator.Dial(context.Background(), "iser://192.0.2.10/iqn.2026-11.com.example:store1", dialers...)
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	fmt.Println(s.LUN(0).Serial(context.Background()))
}

// Errors tell apart who failed: the logical unit, a path, or the caller's patience.
func ExampleOpen_errors() {
	_, err := initiator.Open(context.Background(), []string{"iscsi://127.0.0.1:1/iqn.2026-11.com.example:disk/0"}, initiator.WithDialer("iscsi", &tcp.Dialer{}))
	var answered *scsi.Error
	fmt.Println(err != nil, errors.As(err, &answered))
	// Output: true false
}
