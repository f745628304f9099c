package nbd

import (
	"context"
	"errors"
	"fmt"
	"math"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

// Disk is what is exported. *initiator.Disk and *initiator.LUN are Disks. Over a LUN a command that the logical unit puts off fails: a Disk
// sends it again.
type Disk interface {
	Submit(reqs ...*initiator.Request) error
	Alloc(n int) (iscsi.Buffer, error)
	Unmap(ctx context.Context, extents ...scsi.Extent) error
	WriteZeroes(ctx context.Context, lba, blocks uint64, unmap bool) error
	Flush(ctx context.Context) error
	GetLBAStatus(ctx context.Context, lba uint64) ([]initiator.BlockStatus, error)
}

// Export is what clients are told of a disk, and how it is used.
type Export struct {
	// Name is what clients may ask for besides the empty name. Description is for people.
	Name, Description string
	// Size of the disk and of its logical blocks, in octets. Requests that are not whole blocks are refused: there is never a silent read, modify and
	// write.
	Size      int64
	BlockSize int
	// Preferred is the length that requests do best to be multiples of, in octets; 0 means 4 KiB or the block size.
	Preferred int
	// MaxTransfer is how many octets one command may move; 0 is as many as one likes.
	MaxTransfer int
	// ReadOnly refuses all changes.
	ReadOnly bool
	// Rotational tells that neighbouring blocks are faster.
	Rotational bool
	// Cache tells that the disk has a cache that a flush is for.
	Cache bool
	// FUA tells that a WRITE's FUA bit is understood. Without it a flush follows each such write.
	FUA bool
	// Unmap and UnmapSame are ways to take blocks away: UNMAP, and WRITE SAME with its UNMAP bit.
	Unmap, UnmapSame bool
	// Map tells that GET LBA STATUS is understood, and ReadsZeros that blocks which are not mapped read as zeroes.
	Map, ReadsZeros bool
	// Prefetch tells that PRE-FETCH is understood.
	Prefetch bool
}

// Describe asks a logical unit what it can do.
func Describe(ctx context.Context, l *initiator.LUN) (Export, error) {
	c, err := l.Capacity(ctx)
	if err != nil {
		return Export{}, err
	}
	x := Export{Size: c.Size(), BlockSize: int(c.BlockSize)}
	m, err := l.ModeSense(ctx, scsi.ModePageAll, 0, scsi.ModeCurrent)
	switch {
	case err == nil:
		x.ReadOnly, x.FUA = m.WriteProtected, m.DPOFUA
		x.Cache, _ = m.WriteCache()
	case !lacking(err):
		return Export{}, err
	}
	rate, err := l.RotationRate(ctx)
	if err != nil && !lacking(err) {
		return Export{}, err
	}
	x.Rotational = rate > 1
	p, err := l.Provisioning(ctx)
	if err != nil && !lacking(err) {
		return Export{}, err
	}
	x.Unmap, x.UnmapSame = p.Unmap, p.WriteSame16 || p.WriteSame10
	if x.ReadsZeros = c.ReadsZeros; c.Thin {
		_, err := l.GetLBAStatus(ctx, 0)
		if err != nil && !lacking(err) {
			return Export{}, err
		}
		x.Map = err == nil
	}
	if x.Prefetch, err = prefetches(ctx, l); err != nil {
		return Export{}, err
	}
	b, err := l.Limits(ctx)
	if err != nil && !lacking(err) {
		return Export{}, err
	}
	if n := int64(b.OptimalGranularity) * int64(x.BlockSize); n > 0 && n <= largePiece && n&(n-1) == 0 {
		x.Preferred = int(n)
	}
	x.MaxTransfer = int(min(int64(b.MaxTransfer)*int64(x.BlockSize), MaxRequest))
	return x, x.check()
}

// prefetches tells whether the logical unit knows PRE-FETCH, both forms of it.
func prefetches(ctx context.Context, l *initiator.LUN) (bool, error) {
	list, err := l.SupportedCommands(ctx)
	if err != nil {
		if lacking(err) {
			err = nil
		}
		return false, err
	}
	found := 0
	for _, c := range list {
		if c.Opcode == scsi.OpPreFetch10 || c.Opcode == scsi.OpPreFetch16 {
			found++
		}
	}
	return found == 2, nil
}

// lacking tells that the logical unit does not know what was asked, which is its right.
func lacking(err error) bool {
	var data *scsi.DataError
	return errors.Is(err, scsi.KeyIllegalRequest.Err()) || errors.As(err, &data)
}

func (x *Export) check() error {
	switch {
	case x.BlockSize < 1 || x.BlockSize > smallPiece || x.BlockSize&(x.BlockSize-1) != 0, x.Size < 0, x.Size%int64(max(x.BlockSize, 1)) != 0:
		return &SizeError{x.Size, x.BlockSize}
	case x.MaxTransfer < 0 || x.MaxTransfer > 0 && x.MaxTransfer < x.BlockSize:
		return fmt.Errorf("nbd: commands of at most %d octets, and blocks of %d", x.MaxTransfer, x.BlockSize)
	case len(x.Name) > maxName || len(x.Description) > maxName:
		return fmt.Errorf("nbd: an export's name and description have at most %d octets", maxName)
	case x.Preferred != 0 && (x.Preferred < x.BlockSize || x.Preferred > MaxRequest || x.Preferred&(x.Preferred-1) != 0):
		return fmt.Errorf("nbd: preferred length %d: want a power of two, not below the block size", x.Preferred)
	}
	return nil
}

// Flags are the export's transmission flags.
func (x *Export) Flags() TransmissionFlags {
	f := HasFlags | SendFlush | CanMultiConn
	if x.Rotational {
		f |= Rotational
	}
	if x.ReadOnly {
		return f | ReadOnly
	}
	f |= SendFUA | SendWriteZeroes
	if x.Unmap || x.UnmapSame {
		f |= SendTrim
	}
	return f
}

// fastZero tells whether zeroes can be had without writing them: the disk unmaps, and unmapped blocks read as zeroes.
func (x *Export) fastZero() bool { return x.UnmapSame && x.ReadsZeros && !x.ReadOnly }

// command is how many octets one command carries at most: whole blocks.
func (x *Export) command() int {
	if x.MaxTransfer == 0 {
		return largePiece
	}
	return min(x.MaxTransfer/x.BlockSize*x.BlockSize, largePiece)
}

// preferred is what clients are told as the preferred block size.
func (x *Export) preferred() int {
	if x.Preferred > 0 {
		return x.Preferred
	}
	return max(4096, x.BlockSize)
}

// within tells whether a request lies within the disk of so many octets.
func (r *request) within(size int64) bool {
	return r.offset <= math.MaxInt64 && int64(r.offset) <= size && int64(r.length) <= size-int64(r.offset)
}
