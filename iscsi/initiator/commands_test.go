package initiator_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

func TestEveryCommandOfALUN(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		sess := s.login(t)
		l := sess.LUN(0)
		ctx := t.Context()

		t.Run("zeroes, unmap and status", func(t *testing.T) {
			_, err := l.WriteAt(random(1<<20), 0)
			require.NoError(t, err)
			require.NoError(t, l.WriteZeroes(ctx, 8, 100, false))
			b := make([]byte, 512*102)
			_, err = l.ReadAt(b, 512*7)
			require.NoError(t, err)
			require.Equal(t, make([]byte, 512*100), b[512:512*101])
			require.Equal(t, random(1 << 20)[512*7:512*8], b[:512])
			require.NoError(t, l.WriteSame(ctx, 200, 3, bytes.Repeat([]byte{7}, 512), false))
			_, err = l.ReadAt(b[:512*3], 512*200)
			require.NoError(t, err)
			require.Equal(t, bytes.Repeat([]byte{7}, 512*3), b[:512*3])
			require.NoError(t, l.Unmap(ctx, scsi.Extent{LBA: 1024, Blocks: 512}, scsi.Extent{LBA: 1 << 13, Blocks: 8}))
			list, err := l.GetLBAStatus(ctx, 5)
			require.NoError(t, err)
			require.EqualValues(t, 5, list[0].LBA)
			require.Error(t, l.WriteZeroes(ctx, 0, 1<<40, false))
			require.ErrorContains(t, l.WriteSame(ctx, 0, 1, []byte{1}, false), "a block has 512")
		})
		t.Run("verify", func(t *testing.T) {
			data := random(4096)
			_, err := l.WriteAt(data, 0)
			require.NoError(t, err)
			require.NoError(t, l.Verify(ctx, 0, 8))
			require.NoError(t, l.VerifyData(ctx, 0, data))
			data[4000] ^= 1
			require.ErrorIs(t, l.VerifyData(ctx, 0, data), scsi.KeyMiscompare.Err())
		})
		t.Run("compare and write", func(t *testing.T) {
			before, after := random(512), bytes.Repeat([]byte{9}, 512)
			_, err := l.WriteAt(before, 0)
			require.NoError(t, err)
			require.NoError(t, l.CompareAndWrite(ctx, 0, before, after))
			err = l.CompareAndWrite(ctx, 0, before, after)
			require.ErrorIs(t, err, scsi.KeyMiscompare.Err())
			var e *scsi.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, scsi.StatusCheckCondition, e.Status)
			require.Equal(t, scsi.CodeMiscompareDuringVerify, e.Sense.Code)
			require.ErrorContains(t, l.CompareAndWrite(ctx, 0, before, after[1:]), "whole blocks")
		})
		t.Run("what it is", func(t *testing.T) {
			pages, err := l.VPDPages(ctx)
			require.NoError(t, err)
			require.Contains(t, pages, byte(scsi.PageIdentification))
			serial, err := l.Serial(ctx)
			require.NoError(t, err)
			require.NotEmpty(t, serial)
			ids, err := l.Designators(ctx)
			require.NoError(t, err)
			require.NotEmpty(t, ids)
			_, err = l.Limits(ctx)
			require.NoError(t, err)
			rate, err := l.RotationRate(ctx)
			require.NoError(t, err)
			require.EqualValues(t, 1, rate)
			_, err = l.Provisioning(ctx)
			require.NoError(t, err)
			_, err = l.WriteCache(ctx)
			require.NoError(t, err)
			sense, err := l.RequestSense(ctx)
			require.NoError(t, err)
			require.Equal(t, scsi.KeyNoSense, sense.Key)
			cmds, err := l.SupportedCommands(ctx)
			require.NoError(t, err)
			names := map[string]bool{}
			for _, c := range cmds {
				names[c.Name()] = true
			}
			require.True(t, names["READ(16)"] && names["REPORT LUNS"])
			require.NoError(t, l.FlushRange(ctx, 0, 8))
			require.NoError(t, l.StartStop(ctx, true))
		})
		t.Run("mode", func(t *testing.T) {
			m, err := l.ModeSense(ctx, scsi.ModePageCaching, 0, scsi.ModeCurrent)
			require.NoError(t, err)
			page := bytes.Clone(m.Page(scsi.ModePageCaching))
			for _, on := range []bool{true, false} {
				page[2] &^= 4
				if on {
					page[2] |= 4
				}
				require.NoError(t, l.ModeSelect(ctx, page, false))
				got, err := l.WriteCache(ctx)
				require.NoError(t, err)
				require.Equal(t, on, got)
			}
			require.Error(t, l.ModeSelect(ctx, nil, false))
		})
		t.Run("streams", func(t *testing.T) {
			want := random(5 << 20)
			n := uint32(len(want) / 512)
			cdb := scsi.Write16(16, n, 0)
			m, err := l.WriteStream(ctx, cdb.Bytes(), int64(len(want)), bytes.NewReader(want))
			require.NoError(t, err)
			require.EqualValues(t, len(want), m)
			for _, cdb := range []scsi.CDB{scsi.Read16(16, n, 0), scsi.Read(16, n, scsi.FUA)} {
				var got bytes.Buffer
				m, err = l.ReadStream(ctx, cdb.Bytes(), int64(len(want)), &got)
				require.NoError(t, err)
				require.EqualValues(t, len(want), m)
				require.True(t, bytes.Equal(want, got.Bytes()))
			}
			m, err = l.WriteStream(ctx, cdb.Bytes(), int64(len(want)), io.LimitReader(bytes.NewReader(want), 3<<20+7))
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			require.EqualValues(t, 3<<20, m)
			_, err = l.ReadStream(ctx, cdb.Bytes(), 4<<20, io.Discard)
			require.ErrorContains(t, err, "cannot be split")
			var got bytes.Buffer
			inq := scsi.Inquiry(255)
			m, err = l.ReadStream(ctx, inq.Bytes(), 255, &got)
			require.NoError(t, err)
			require.EqualValues(t, got.Len(), m)
			_, err = scsi.ParseInquiry(got.Bytes())
			require.NoError(t, err)
		})
		t.Run("batch with a channel", func(t *testing.T) {
			ch := make(chan *initiator.Request, 4)
			var reqs []*initiator.Request
			for range 4 {
				reqs = append(reqs, &initiator.Request{Done: initiator.Notify(ch)})
			}
			buf, err := l.Alloc(4096)
			require.NoError(t, err)
			defer buf.Release()
			copy(buf.Bytes(), random(4096))
			l.PrepareWrite(reqs[0], 4096, 8, 512, buf)
			reqs[0].CDB[1] |= scsi.FUA
			l.PrepareFlush(reqs[1])
			l.PrepareUnmap(reqs[2], 8192, 16)
			l.PrepareWriteZeroes(reqs[3], 9000, 16, true)
			require.NoError(t, l.Submit(reqs...))
			for range reqs {
				require.NoError(t, (<-ch).Err)
			}
			require.NoError(t, l.VerifyData(ctx, 4096, random(4096)))
			r := new(initiator.Request)
			l.PrepareRead(r, 4096, 8, 512, buf)
			require.NoError(t, l.Execute(ctx, r))
		})
	})
}
