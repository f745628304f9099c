package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"
)

// randomIO does n reads or writes of a disk's blocks, four at a time, past the page cache, and prints I/Os per second.
func randomIO(disk, what string, n int) error {
	const workers, blocks = 4, 64 << 20 / proofBlock
	errs := make([]error, workers)
	var all sync.WaitGroup
	start := time.Now()
	for w := range workers {
		all.Go(func() {
			f, err := os.OpenFile(disk, os.O_RDWR|openDirect, 0)
			if err != nil {
				errs[w] = err
				return
			}
			defer f.Close()
			rng := rand.New(rand.NewPCG(3, uint64(w)))
			b := alignedBlock()
			for range n / workers {
				off := int64(rng.IntN(blocks)) * proofBlock
				if what == "read" {
					_, err = f.ReadAt(b, off)
				} else {
					_, err = f.WriteAt(b, off)
				}
				if err != nil {
					errs[w] = err
					return
				}
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Printf("%.0f\n", float64(n)/time.Since(start).Seconds())
	return nil
}
