// Command peer is a peer with habits that the programs do not have: it runs in the interop guest and talks to
// the kernel.
//
//	peer invalidate URL      write and read, Send with Invalidate agreed
//	peer no-invalidate URL   the same, Send with Invalidate refused
//	peer beyond URL          read behind the end of the disk
//	peer write DISK LOG N    write, and note what was acknowledged as durable
//	peer verify IMAGE LOG    hold an image to that log
//	peer io DISK HOW N       random I/O of 4 KiB, HOW is read or write; prints I/Os per second
//	peer fsx FILE HOW SEED   change a file at random and compare it with what it should be; HOW is a number of changes or a time
//	peer faults ADDR WHOSE   do wrong things to an rping server, of siw or ours
//	peer provoke ADDR        have our stack do one to siw, and show what it says of the answer
//	peer bad-first ADDR      a first FPDU that is none
//	peer markers ADDR WHOSE  ask for Markers: siw refuses, ours does not
//	peer half-open ADDR      connect and say nothing
//	peer reject ADDR         answer one Request with a rejecting Reply and private data
//	peer mute ADDR           never answer a Request
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	var o options
	flag.BoolVar(&o.crc, "crc", true, "MPA CRCs")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := o.run(ctx, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", strings.ReplaceAll(err.Error(), "\n", "; "))
		os.Exit(1)
	}
}

type options struct{ crc bool }

func (o options) run(ctx context.Context, args []string) error {
	args = append(args, make([]string, 4)...) // what is missing is empty
	switch args[0] {
	case "invalidate", "no-invalidate":
		return o.exchange(ctx, args[1], args[0] == "invalidate")
	case "beyond":
		return o.beyond(ctx, args[1])
	case "write":
		n, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		return writeDurably(ctx, args[1], args[2], n)
	case "io":
		n, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		return randomIO(args[1], args[2], n)
	case "fsx":
		seed, err := strconv.ParseUint(args[3], 10, 64)
		if err != nil {
			return err
		}
		return exercise(args[1], args[2], seed)
	case "faults":
		return o.runFaults(ctx, args[1], args[2])
	case "provoke":
		return o.provoke(ctx, args[1])
	case "bad-first":
		return o.badFirst(ctx, args[1])
	case "markers":
		return markers(ctx, args[1], args[2] == "siw")
	case "half-open":
		return halfOpen(ctx, args[1])
	case "reject":
		return reply(ctx, args[1], flagR, []byte("go away"))
	case "mute":
		return reply(ctx, args[1], 0, nil)
	case "verify":
		return verifyDurable(args[1], args[2])
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// exchange writes 1 MiB, reads it back, and checks who invalidated the STags.
func (o options) exchange(ctx context.Context, url string, invalidate bool) (err error) {
	s, err := o.login(ctx, url, !invalidate)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	data := make([]byte, 1<<20)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	if _, err := s.lun.WriteAtContext(ctx, data, 0); err != nil {
		return err
	}
	back := make([]byte, len(data))
	if _, err := s.lun.ReadAtContext(ctx, back, 0); err != nil {
		return err
	}
	if !bytes.Equal(data, back) {
		return errors.New("what was read is not what was written")
	}
	byPeer := s.fact("STags invalidated by the peer")
	fmt.Println("STags invalidated by the peer:", byPeer)
	if (byPeer != "0") != invalidate {
		return fmt.Errorf("the peer invalidated %s STags", byPeer)
	}
	return nil
}

// beyond asks for a block that the disk does not have.
func (o options) beyond(ctx context.Context, url string) (err error) {
	s, err := o.login(ctx, url, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	size, err := s.lun.Size(ctx)
	if err != nil {
		return err
	}
	block, err := s.lun.BlockSize(ctx)
	if err != nil {
		return err
	}
	buf, err := s.session.Alloc(block)
	if err != nil {
		return err
	}
	defer buf.Release()
	return s.lun.ReadBuf(ctx, uint64(size)/uint64(block)+8, 1, buf)
}

var quiet = slog.New(slog.DiscardHandler)
