package initiator

import (
	"context"
	"errors"
	"fmt"
	"io"

	"goiwarp/iscsi/scsi"
)

// overlap is how many commands of one ReadAt or WriteAt are under way at once.
const overlap = 8

// geometry is the logical unit's size and limits, asked for once, and again after a unit attention.
func (l *LUN) geometry(ctx context.Context) (*geometry, error) {
	if g := l.geo.Load(); g != nil {
		return g, nil
	}
	c, err := l.Capacity(ctx)
	if err != nil {
		return nil, err
	}
	g := &geometry{capacity: c, blockSize: int(c.BlockSize)}
	g.maxBlocks = uint32(max(maxTransfer/g.blockSize, 1))
	switch b, err := l.VPD(ctx, scsi.PageBlockLimits); {
	case err == nil:
		if g.limits, err = scsi.ParseBlockLimits(b); err == nil && g.limits.MaxTransfer > 0 {
			g.maxBlocks = min(g.maxBlocks, g.limits.MaxTransfer)
		}
	case !errors.Is(err, scsi.KeyIllegalRequest.Err()): // the page is optional
		return nil, err
	}
	l.geo.Store(g)
	return g, nil
}

// Size is the capacity in octets.
func (l *LUN) Size(ctx context.Context) (int64, error) {
	g, err := l.geometry(ctx)
	if err != nil {
		return 0, err
	}
	return g.capacity.Size(), nil
}

// BlockSize is the length of a logical block in octets.
func (l *LUN) BlockSize(ctx context.Context) (int, error) {
	g, err := l.geometry(ctx)
	if err != nil {
		return 0, err
	}
	return g.blockSize, nil
}

// ReadAt implements io.ReaderAt, for any offset and length.
func (l *LUN) ReadAt(p []byte, off int64) (int, error) {
	return l.ReadAtContext(context.Background(), p, off)
}

// WriteAt implements io.WriterAt, for any offset and length. A block of which only a part is written is read first; that is safe among
// the users of this LUN value, not among several initiators.
func (l *LUN) WriteAt(p []byte, off int64) (int, error) {
	return l.WriteAtContext(context.Background(), p, off)
}

// ReadAtContext is ReadAt with a context.
func (l *LUN) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	g, err := l.geometry(ctx)
	if err != nil {
		return 0, err
	}
	size := g.capacity.Size()
	switch {
	case off < 0:
		return 0, fmt.Errorf("initiator: negative offset %d", off)
	case off >= size:
		return 0, io.EOF
	}
	end := error(nil)
	if int64(len(p)) > size-off {
		p, end = p[:size-off], io.EOF
	}
	n, err := l.pieces(p, off, g, func(p []byte, off int64) (int, error) {
		return l.transfer(ctx, g, p, off, false)
	}, func(p []byte, block, within int64) error {
		b := make([]byte, g.blockSize)
		_, err := l.transfer(ctx, g, b, block, false)
		copy(p, b[within:])
		return err
	})
	if err == nil {
		err = end
	}
	return n, err
}

// WriteAtContext is WriteAt with a context.
func (l *LUN) WriteAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	g, err := l.geometry(ctx)
	if err != nil {
		return 0, err
	}
	size := g.capacity.Size()
	if off < 0 || off > size || int64(len(p)) > size-off {
		return 0, fmt.Errorf("initiator: write of %d octets at %d: the logical unit has %d: %w", len(p), off, size, io.ErrShortWrite)
	}
	return l.pieces(p, off, g, func(p []byte, off int64) (int, error) {
		return l.transfer(ctx, g, p, off, true)
	}, func(p []byte, block, within int64) error {
		l.edge.Lock()
		defer l.edge.Unlock()
		b := make([]byte, g.blockSize)
		if _, err := l.transfer(ctx, g, b, block, false); err != nil {
			return err
		}
		copy(b[within:], p)
		_, err := l.transfer(ctx, g, b, block, true)
		return err
	})
}

// pieces handles p at off as parts of a block at either end, and whole blocks between. It returns how much of p was handled.
func (l *LUN) pieces(p []byte, off int64, g *geometry,
	whole func(p []byte, off int64) (int, error), part func(p []byte, block, within int64) error,
) (n int, err error) {
	bs := int64(g.blockSize)
	for n < len(p) {
		at := off + int64(n)
		within, left := at%bs, int64(len(p)-n)
		if within == 0 && left >= bs {
			m, err := whole(p[n:n+int(left-left%bs)], at)
			if n += m; err != nil {
				return n, err
			}
			continue
		}
		m := min(bs-within, left)
		if err := part(p[n:n+int(m)], at-within, within); err != nil {
			return n, err
		}
		n += int(m)
	}
	return n, nil
}

// transfer reads or writes whole blocks, in as many commands as it takes. It returns how many octets from the beginning
// were moved.
func (l *LUN) transfer(ctx context.Context, g *geometry, p []byte, off int64, write bool) (int, error) {
	var ring [overlap]*Request
	chunk := int(g.maxBlocks) * g.blockSize
	begun, ended, first, last := 0, 0, 0, 0
	var failed error
	for ended < len(p) && failed == nil || first < last {
		if failed == nil && begun < len(p) && last-first < overlap {
			n := min(chunk, len(p)-begun)
			r := l.pool.get()
			l.prepare(r, g, p[begun:begun+n], off+int64(begun), write)
			if failed = l.start(r); failed != nil {
				l.pool.put(r)
				continue
			}
			ring[last%overlap] = r
			last++
			begun += n
			continue
		}
		r := ring[first%overlap]
		first++
		n := r.InLen + r.OutLen
		err := l.wait(ctx, r)
		if err != nil && failed == nil {
			err = l.again(ctx, r, err)
		}
		err = l.complete(r, err)
		l.pool.put(r)
		switch {
		case failed != nil:
		case err != nil:
			failed = err
		default:
			ended += n
		}
	}
	return ended, failed
}

// prepare makes r one command of a transfer.
func (l *LUN) prepare(r *Request, g *geometry, p []byte, off int64, write bool) {
	lba, blocks := uint64(off)/uint64(g.blockSize), uint32(len(p)/g.blockSize)
	if write {
		r.CDB = scsi.Write(lba, blocks, 0)
		r.useOut(p)
	} else {
		r.CDB = scsi.Read(lba, blocks, 0)
		r.useIn(p)
	}
}
