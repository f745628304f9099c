package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
)

// Blocks of the durability proof. Each writer has its own run of blocks; a block carries its number and the sequence
// number of its write, and a checksum over all of it, so that a torn block is seen:
//
//	octet  0       8            16                          4092
//	       | block | sequence   | pattern                   | CRC32 |
const (
	proofBlock  = 4096
	proofBlocks = 1024 // per writer
	proofCalls  = 4    // writers
)

func fillBlock(b []byte, block, seq uint64) {
	binary.BigEndian.PutUint64(b, block)
	binary.BigEndian.PutUint64(b[8:], seq)
	for i := 16; i < proofBlock-4; i++ {
		b[i] = byte(seq + uint64(i))
	}
	binary.BigEndian.PutUint32(b[proofBlock-4:], crc32.ChecksumIEEE(b[:proofBlock-4]))
}

// readBlock returns the sequence number of the write that the block holds.
func readBlock(b []byte, block uint64) (seq uint64, err error) {
	if crc32.ChecksumIEEE(b[:proofBlock-4]) != binary.BigEndian.Uint32(b[proofBlock-4:]) {
		return 0, errors.New("torn, or never written")
	}
	if got := binary.BigEndian.Uint64(b); got != block {
		return 0, fmt.Errorf("holds block %d", got)
	}
	return binary.BigEndian.Uint64(b[8:]), nil
}

// writeDurably writes random blocks of a disk until rounds of each writer are done, and notes in the log, with one write to it
// per line, each write that was acknowledged as durable: half of the writers flush behind some writes, the others write with
// O_DSYNC, for which the kernel sets FUA.
func writeDurably(ctx context.Context, disk, log string, rounds int) error {
	acks, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer acks.Close()
	var seq atomic.Uint64
	errs := make([]error, proofCalls)
	var writers sync.WaitGroup
	for w := range proofCalls {
		writers.Go(func() { errs[w] = writeRounds(ctx, disk, acks, w, rounds, &seq) })
	}
	writers.Wait()
	return errors.Join(errs...)
}

func writeRounds(ctx context.Context, disk string, acks *os.File, writer, rounds int, seq *atomic.Uint64) error {
	flags := os.O_RDWR
	flushing := writer%2 == 0
	if !flushing {
		flags |= openDSync
	}
	f, err := os.OpenFile(disk, flags, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	rng := rand.New(rand.NewPCG(7, uint64(writer)))
	b := alignedBlock()
	for round := 0; round < rounds && ctx.Err() == nil; round++ {
		var lines []byte
		n := 1
		if flushing {
			n = 4
		}
		for range n {
			block := uint64(writer*proofBlocks + rng.IntN(proofBlocks))
			s := seq.Add(1)
			fillBlock(b, block, s)
			if _, err := f.WriteAt(b, int64(block)*proofBlock); err != nil {
				return err
			}
			lines = fmt.Appendf(lines, "%d %d\n", block, s)
		}
		if flushing {
			if err := f.Sync(); err != nil {
				return err
			}
		}
		if _, err := acks.Write(lines); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// verifyDurable holds an image to the log: each acknowledged write, or a later one of the same block, is in it.
func verifyDurable(image, log string) error {
	f, err := os.Open(image)
	if err != nil {
		return err
	}
	defer f.Close()
	acks, err := os.Open(log)
	if err != nil {
		return err
	}
	defer acks.Close()
	want := map[uint64]uint64{}
	lines := bufio.NewScanner(acks)
	n := 0
	for lines.Scan() {
		var block, seq uint64
		if _, err := fmt.Sscanf(lines.Text(), "%d %d", &block, &seq); err != nil {
			return fmt.Errorf("%s: %q: %w", log, lines.Text(), err)
		}
		want[block] = max(want[block], seq)
		n++
	}
	if err := lines.Err(); err != nil {
		return err
	}
	b := make([]byte, proofBlock)
	for block, seq := range want {
		if _, err := f.ReadAt(b, int64(block)*proofBlock); err != nil {
			return err
		}
		got, err := readBlock(b, block)
		if err != nil {
			return fmt.Errorf("block %d, acknowledged with sequence number %d: %w", block, seq, err)
		}
		if got < seq {
			return fmt.Errorf("block %d has sequence number %d, but %d was acknowledged", block, got, seq)
		}
	}
	fmt.Printf("%d acknowledged writes of %d blocks are there\n", n, len(want))
	if n == 0 {
		return errors.New("nothing was acknowledged")
	}
	return nil
}
