package initiator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"goiwarp/iscsi/scsi"
)

// Bounds of what one command is asked to do where the logical unit tells none.
const (
	maxUnmapExtents = 64
	maxSameBlocks   = 65535
)

// Unmap tells that the blocks' contents are needed no more (SBC-3, section 5.28), in as many commands as the block limits ask for. A
// logical unit need not do anything about it: what is read afterwards may be the old contents, or zeros.
func (l *LUN) Unmap(ctx context.Context, extents ...scsi.Extent) error {
	g, err := l.geometry(ctx)
	if err != nil {
		return err
	}
	most, room := maxUnmapExtents, uint64(1<<32-1)
	if n := g.limits.MaxUnmapDescriptors; n > 0 {
		most = int(min(n, maxUnmapExtents))
	}
	if n := g.limits.MaxUnmap; n > 0 {
		room = uint64(n)
	}
	batch := make([]scsi.Extent, 0, min(most, len(extents)))
	left := room
	for _, e := range extents {
		for e.Blocks > 0 {
			n := uint32(min(uint64(e.Blocks), left))
			batch = append(batch, scsi.Extent{LBA: e.LBA, Blocks: n})
			e.LBA, e.Blocks, left = e.LBA+uint64(n), e.Blocks-n, left-uint64(n)
			if left > 0 && len(batch) < most {
				continue
			}
			if err := l.unmap(ctx, batch); err != nil {
				return err
			}
			batch, left = batch[:0], room
		}
	}
	if len(batch) == 0 {
		return nil
	}
	return l.unmap(ctx, batch)
}

// unmap sends one UNMAP. Some targets (tgt) do as they are asked and tell a residual of the whole list; since nothing hangs on
// what becomes of the blocks, the status counts.
func (l *LUN) unmap(ctx context.Context, batch []scsi.Extent) error {
	err := l.give(ctx, scsi.Unmap(len(batch)), scsi.AppendUnmap(nil, batch))
	if errors.Is(err, ErrShort) {
		return nil
	}
	return err
}

// WriteSame writes one block's contents to all of a range (SBC-3, section 5.44), in as many commands as the block limits ask for.
// unmap lets the logical unit unmap instead, where the result reads the same.
func (l *LUN) WriteSame(ctx context.Context, lba, blocks uint64, block []byte, unmap bool) error {
	g, err := l.geometry(ctx)
	if err != nil {
		return err
	}
	if len(block) != g.blockSize {
		return fmt.Errorf("initiator: WRITE SAME of %d octets: a block has %d", len(block), g.blockSize)
	}
	return l.same(g, lba, blocks, func(lba uint64, n uint32) error { return l.give(ctx, scsi.WriteSame(lba, n, unmap), block) })
}

// same runs f for a range in pieces that WRITE SAME takes.
func (l *LUN) same(g *geometry, lba, blocks uint64, f func(lba uint64, n uint32) error) error {
	if blocks > g.capacity.Blocks || lba > g.capacity.Blocks-blocks {
		return fmt.Errorf("initiator: blocks %d to %d: the logical unit has %d", lba, lba+blocks, g.capacity.Blocks)
	}
	most := uint64(maxSameBlocks)
	if n := g.limits.MaxWriteSame; n > 0 {
		most = min(n, 1<<32-1)
	}
	for blocks > 0 {
		n := min(blocks, most)
		if err := f(lba, uint32(n)); err != nil {
			return err
		}
		lba, blocks = lba+n, blocks-n
	}
	return nil
}

// WriteZeroes lets a range read as zeros: by WRITE SAME without data, by WRITE SAME with a block of zeros, or by writing zeros, whichever
// the logical unit knows. unmap lets it unmap where unmapped blocks read as zeros.
func (l *LUN) WriteZeroes(ctx context.Context, lba, blocks uint64, unmap bool) error {
	g, err := l.geometry(ctx)
	if err != nil {
		return err
	}
	err = l.same(g, lba, blocks, func(lba uint64, n uint32) error { return l.simple(ctx, scsi.WriteZeroes(lba, n, unmap)) })
	if !errors.Is(err, scsi.KeyIllegalRequest.Err()) || errors.Is(err, scsi.CodeLBAOutOfRange.Err()) {
		return err
	}
	zeros := make([]byte, g.blockSize)
	err = l.WriteSame(ctx, lba, blocks, zeros, unmap)
	if !errors.Is(err, scsi.CodeInvalidOpcode.Err()) && !errors.Is(err, scsi.CodeInvalidFieldInCDB.Err()) {
		return err
	}
	zeros = make([]byte, min(uint64(g.maxBlocks), blocks)*uint64(g.blockSize))
	for blocks > 0 {
		n := min(blocks, uint64(g.maxBlocks))
		if _, err := l.transfer(ctx, g, zeros[:n*uint64(g.blockSize)], int64(lba)*int64(g.blockSize), true); err != nil {
			return err
		}
		lba, blocks = lba+n, blocks-n
	}
	return nil
}

// BlockStatus is how a range of blocks is provisioned.
type BlockStatus struct {
	LBA    uint64
	Blocks uint32
	State  Provisioning
}

// Provisioning is a block's provisioning status (SBC-3, section 5.6).
type Provisioning byte

// The provisioning states.
const (
	Mapped      Provisioning = 0
	Deallocated Provisioning = 1
	Anchored    Provisioning = 2
)

func (p Provisioning) String() string {
	switch p {
	case Mapped:
		return "mapped"
	case Deallocated:
		return "deallocated"
	case Anchored:
		return "anchored"
	}
	return fmt.Sprintf("provisioning status %d", byte(p))
}

// GetLBAStatus asks how the blocks from lba on are provisioned. The answer begins at lba, has no gaps, and may end before the logical unit does:
// ask again from there. A logical unit that does not know the command answers with a *scsi.Error, INVALID COMMAND OPERATION CODE.
func (l *LUN) GetLBAStatus(ctx context.Context, lba uint64) ([]BlockStatus, error) {
	const most = 8 + 16*256
	b, err := l.fetch(ctx, scsi.GetLBAStatus(lba, most), most)
	if err != nil {
		return nil, err
	}
	return parseLBAStatus(b, lba)
}

// parseLBAStatus reads GET LBA STATUS' data. Descriptors that do not join one another are a lie that data would be lost by.
func parseLBAStatus(b []byte, lba uint64) ([]BlockStatus, error) {
	const what = "GET LBA STATUS data"
	if len(b) < 8 {
		return nil, shortData(what, len(b), 8)
	}
	b = b[8:max(8, min(uint64(len(b)), 4+uint64(binary.BigEndian.Uint32(b))))]
	var list []BlockStatus
	for ; len(b) >= 16; b = b[16:] {
		s := BlockStatus{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), Provisioning(b[12] & 0xf)}
		switch {
		case len(list) == 0 && s.LBA < lba && s.LBA+uint64(s.Blocks) > lba: // an extent that began before
			s.Blocks -= uint32(lba - s.LBA)
			s.LBA = lba
		case s.LBA != lba:
			return nil, &scsi.DataError{What: what, Why: fmt.Sprintf("descriptor of block %d, expected %d", s.LBA, lba)}
		}
		if s.Blocks == 0 || s.LBA+uint64(s.Blocks) < s.LBA {
			return nil, &scsi.DataError{What: what, Why: fmt.Sprintf("descriptor of %d blocks from %d on", s.Blocks, s.LBA)}
		}
		list, lba = append(list, s), s.LBA+uint64(s.Blocks)
	}
	if len(list) == 0 {
		return nil, &scsi.DataError{What: what, Why: "no descriptor"}
	}
	return list, nil
}
