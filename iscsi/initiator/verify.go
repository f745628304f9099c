package initiator

import (
	"context"
	"fmt"

	"goiwarp/iscsi/scsi"
)

// Verify lets the logical unit read the blocks without sending them (SBC-3, section 5.29).
func (l *LUN) Verify(ctx context.Context, lba uint64, blocks uint32) error {
	return l.simple(ctx, scsi.Verify(lba, blocks, scsi.VerifyMedium))
}

// VerifyData lets the logical unit compare blocks with data, which has whole blocks. That they differ is a *scsi.Error for which
// errors.Is(err, scsi.KeyMiscompare.Err()); its sense data may tell where.
func (l *LUN) VerifyData(ctx context.Context, lba uint64, data []byte) error {
	g, err := l.geometry(ctx)
	if err != nil {
		return err
	}
	if len(data)%g.blockSize != 0 {
		return fmt.Errorf("initiator: VERIFY with %d octets: not a multiple of the block size %d", len(data), g.blockSize)
	}
	for len(data) > 0 {
		n := min(len(data)/g.blockSize, int(g.maxBlocks))
		if err := l.give(ctx, scsi.Verify(lba, uint32(n), scsi.VerifyData), data[:n*g.blockSize]); err != nil {
			return err
		}
		lba, data = lba+uint64(n), data[n*g.blockSize:]
	}
	return nil
}

// CompareAndWrite writes blocks if they hold what compare says, in one atomic step (SBC-3, section 5.3). Otherwise it is a *scsi.Error for
// which errors.Is(err, scsi.KeyMiscompare.Err()). compare and write have as many whole blocks, at most as many as Limits tells. It is not
// sent again after a lost connection, because it may have been executed: that is an ErrUncertain of a Disk.
func (l *LUN) CompareAndWrite(ctx context.Context, lba uint64, compare, write []byte) error {
	g, err := l.geometry(ctx)
	if err != nil {
		return err
	}
	n := len(compare) / g.blockSize
	if len(compare) != len(write) || len(compare)%g.blockSize != 0 || n == 0 || n > 255 {
		return fmt.Errorf("initiator: COMPARE AND WRITE of %d and %d octets: want the same number of whole blocks of %d, up to 255",
			len(compare), len(write), g.blockSize)
	}
	both := make([]byte, 0, 2*len(compare))
	both = append(append(both, compare...), write...)
	return l.give(ctx, scsi.CompareAndWrite(lba, uint8(n), 0), both)
}
