package initiator

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// streamPiece is how much data of a streamed command is in memory at once, in octets, twice.
const streamPiece = 1 << 20

// ReadStream runs a command and writes its data-in, up to n octets, to w. Memory is bounded whatever n is: READ of any length is
// split into commands of up to 1 MiB with the same flags, of which the next is under way while w takes the last; of any other
// command n is at most 1 MiB. It returns how many octets w took.
func (l *LUN) ReadStream(ctx context.Context, cdb []byte, n int64, w io.Writer) (int64, error) {
	return l.stream(ctx, cdb, n, func(b []byte) (int, error) { return w.Write(b) }, nil)
}

// WriteStream runs a command with n octets of data-out that are read from r, as ReadStream does for data-in: WRITE of
// any length is split. It returns how many octets the target took. An end of r before n octets is an io.ErrUnexpectedEOF,
// and what came before was written.
func (l *LUN) WriteStream(ctx context.Context, cdb []byte, n int64, r io.Reader) (int64, error) {
	return l.stream(ctx, cdb, n, nil, func(b []byte) error {
		_, err := io.ReadFull(r, b)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
}

func (l *LUN) stream(ctx context.Context, cdb []byte, n int64, take func([]byte) (int, error), fill func([]byte) error) (int64, error) {
	write := fill != nil
	if n < 0 || len(cdb) == 0 {
		return 0, fmt.Errorf("initiator: CDB of %d octets with %d octets of data", len(cdb), n)
	}
	c, ok := splittable(cdb, write)
	if !ok || n <= streamPiece {
		return l.streamWhole(ctx, cdb, int(min(n, streamPiece+1)), take, fill)
	}
	g, err := l.geometry(ctx)
	if err != nil {
		return 0, err
	}
	if n != int64(c.blocks)*int64(g.blockSize) {
		return 0, fmt.Errorf("initiator: %s of %d blocks with %d octets of data: a block has %d", scsi.OpcodeName(cdb), c.blocks, n, g.blockSize)
	}
	p := &pipe{l: l, g: g, c: c, write: write, take: take, fill: fill}
	defer p.close()
	return p.run(ctx)
}

// streamWhole runs a command whose data fits into memory.
func (l *LUN) streamWhole(ctx context.Context, cdb []byte, n int, take func([]byte) (int, error), fill func([]byte) error) (int64, error) {
	if n > streamPiece {
		return 0, fmt.Errorf("initiator: %s cannot be split, and more than %d octets of data are not held in memory", scsi.OpcodeName(cdb), streamPiece)
	}
	b := make([]byte, n)
	if fill != nil {
		if err := fill(b); err != nil {
			return 0, err
		}
		res, err := l.Do(ctx, cdb, nil, b)
		return int64(res.Out), err
	}
	res, err := l.Do(ctx, cdb, b, nil)
	if err != nil || res.In == 0 {
		return 0, err
	}
	m, err := take(b[:min(res.In, n)])
	return int64(m), err
}

// span is a READ or WRITE taken apart.
type span struct {
	lba    uint64
	blocks uint32
	flags  byte
	attr   byte // GROUP NUMBER
}

// splittable takes a CDB apart that means the same in pieces.
func splittable(cdb []byte, write bool) (span, bool) {
	op := map[bool][4]byte{
		false: {scsi.OpRead10, scsi.OpRead12, scsi.OpRead16, scsi.OpRead6},
		true:  {scsi.OpWrite10, scsi.OpWrite12, scsi.OpWrite16, scsi.OpWrite6},
	}[write]
	var c scsi.CDB
	if copy(c[:], cdb) < c.Len() {
		return span{}, false
	}
	switch c[0] {
	case op[0]:
		return span{uint64(binary.BigEndian.Uint32(c[2:])), uint32(binary.BigEndian.Uint16(c[7:])), c[1], c[6]}, true
	case op[1]:
		return span{uint64(binary.BigEndian.Uint32(c[2:])), binary.BigEndian.Uint32(c[6:]), c[1], c[10]}, true
	case op[2]:
		return span{binary.BigEndian.Uint64(c[2:]), binary.BigEndian.Uint32(c[10:]), c[1], c[14]}, true
	case op[3]:
		n := uint32(c[4])
		if n == 0 {
			n = 256
		}
		return span{uint64(binary.BigEndian.Uint32(c[:]) & 0x1fffff), n, 0, 0}, true
	}
	return span{}, false
}

// pipe runs a split command: two buffers, of which one is with the target while the other is with the caller.
type pipe struct {
	l     *LUN
	g     *geometry
	c     span
	write bool
	take  func([]byte) (int, error)
	fill  func([]byte) error

	bufs [2]iscsi.Buffer
	reqs [2]*Request
	busy [2]bool
}

func (p *pipe) close() {
	for i := range p.reqs {
		if p.busy[i] {
			p.l.c.stop(p.reqs[i])
			<-p.reqs[i].wake
		}
		if p.reqs[i] != nil {
			p.l.pool.put(p.reqs[i])
			p.bufs[i].Release()
		}
	}
}

// start sends the next piece from or into buffer i.
func (p *pipe) start(ctx context.Context, i int) (sent bool, err error) {
	n := min(p.c.blocks, uint32(max(streamPiece/p.g.blockSize, 1)), p.g.maxBlocks)
	if n == 0 {
		return false, nil
	}
	octets := int(n) * p.g.blockSize
	r := p.reqs[i]
	if r == nil {
		b, err := p.l.buffer(octets)
		if err != nil {
			return false, err
		}
		r = p.l.pool.get()
		p.reqs[i], p.bufs[i] = r, b
	}
	if p.write {
		if err := p.fill(p.bufs[i].Bytes()[:octets]); err != nil {
			return false, err
		}
		r.CDB = scsi.Write16(p.c.lba, n, p.c.flags)
		r.Out, r.OutLen = p.bufs[i], octets
	} else {
		r.CDB = scsi.Read16(p.c.lba, n, p.c.flags)
		r.In, r.InLen = p.bufs[i], octets
	}
	if p.c.lba+uint64(n) <= 1<<32 && n <= 0xffff { // the short form is known everywhere
		op := byte(scsi.OpRead10)
		if p.write {
			op = scsi.OpWrite10
		}
		c := scsi.CDB{op, p.c.flags, 6: p.c.attr & 0x1f}
		binary.BigEndian.PutUint32(c[2:], uint32(p.c.lba))
		binary.BigEndian.PutUint16(c[7:], uint16(n))
		r.CDB = c
	} else {
		r.CDB[14] = p.c.attr
	}
	if err := ctx.Err(); err != nil {
		return false, context.Cause(ctx)
	}
	if err := p.l.start(r); err != nil {
		return false, err
	}
	p.busy[i] = true
	p.c.lba, p.c.blocks = p.c.lba+uint64(n), p.c.blocks-n
	return true, nil
}

func (p *pipe) run(ctx context.Context) (int64, error) {
	var done int64
	sent, err := p.start(ctx, 0)
	for i := 0; sent && err == nil; i = 1 - i {
		var next error
		sent, next = p.start(ctx, 1-i)
		r := p.reqs[i]
		err = p.l.wait(ctx, r)
		p.busy[i] = false
		if err != nil {
			err = p.l.again(ctx, r, err)
		}
		err = p.l.complete(r, err)
		n := r.InLen + r.OutLen
		if err == nil && !p.write {
			n, err = p.take(p.bufs[i].Bytes()[:n])
		}
		if err == nil || !p.write {
			done += int64(n)
		}
		if err == nil {
			err = next
		}
	}
	return done, err
}
