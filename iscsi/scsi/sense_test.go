package scsi_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"goiwarp/iscsi/scsi"
)

func TestFixedSense(t *testing.T) {
	s := scsi.Sense{
		Key: scsi.KeyIllegalRequest, Code: scsi.CodeInvalidFieldInCDB,
		FieldValid: true, InCDB: true, Field: 2, BitValid: true, Bit: 5,
	}
	assert.Equal(t, []byte{0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcd, 0, 2}, s.AppendFixed(nil))
	s = scsi.Sense{Key: scsi.KeyMediumError, Code: scsi.CodeUnrecoveredRead, Info: 0x01020304, InfoValid: true, Deferred: true}
	assert.Equal(t, []byte{0xf1, 0, 3, 1, 2, 3, 4, 10, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0}, s.AppendFixed(nil))
	s.Info = 1 << 32
	got, ok := scsi.ParseSense(s.AppendFixed(nil))
	assert.True(t, ok)
	assert.False(t, got.InfoValid, "an address that does not fit is left out")
}

func TestDescriptorSense(t *testing.T) {
	s := scsi.Sense{Key: scsi.KeyMediumError, Code: scsi.CodeWriteError, Info: 1 << 40, InfoValid: true}
	assert.Equal(t, []byte{0x72, 3, 0x0c, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 1, 0, 0, 0, 0, 0}, s.AppendDescriptor(nil))
	s = scsi.Sense{Key: scsi.KeyIllegalRequest, Code: scsi.CodeInvalidFieldInParameters, FieldValid: true, Field: 0x0102}
	assert.Equal(t, []byte{0x72, 5, 0x26, 0, 0, 0, 0, 8, 2, 6, 0, 0, 0x80, 1, 2, 0}, s.AppendDescriptor(nil))
}

func senses() *rapid.Generator[scsi.Sense] {
	return rapid.Custom(func(t *rapid.T) scsi.Sense {
		s := scsi.Sense{
			Deferred:    rapid.Bool().Draw(t, "deferred"),
			Key:         scsi.Key(rapid.IntRange(0, 15).Draw(t, "key")),
			Code:        scsi.Code(rapid.Uint16().Draw(t, "code")),
			CommandInfo: uint64(rapid.Uint32().Draw(t, "command info")),
		}
		if s.InfoValid = rapid.Bool().Draw(t, "info valid"); s.InfoValid {
			s.Info = uint64(rapid.Uint32().Draw(t, "info"))
		}
		if s.Key == scsi.KeyIllegalRequest && rapid.Bool().Draw(t, "field valid") {
			s.FieldValid, s.InCDB, s.Field = true, rapid.Bool().Draw(t, "cdb"), rapid.Uint16().Draw(t, "field")
			if s.BitValid = rapid.Bool().Draw(t, "bit valid"); s.BitValid {
				s.Bit = uint8(rapid.IntRange(0, 7).Draw(t, "bit"))
			}
		}
		return s
	})
}

// Both formats give back what went in, and every prefix is read without harm.
func TestSenseRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := senses().Draw(t, "sense")
		for _, b := range [][]byte{s.AppendFixed(nil), s.AppendDescriptor(nil)} {
			if len(b) > scsi.MaxSense {
				t.Fatalf("%d octets of sense data", len(b))
			}
			got, ok := scsi.ParseSense(b)
			if !ok || got != s {
				t.Fatalf("%+v comes back as %+v", s, got)
			}
			for n := range b {
				if got, ok := scsi.ParseSense(b[:n]); ok && (got.Key != s.Key || got.Deferred != s.Deferred) {
					t.Fatalf("the first %d octets are read as %+v", n, got)
				}
			}
		}
	})
}

func TestResultSense(t *testing.T) {
	r := scsi.Check(scsi.KeyAbortedCommand, scsi.CodeUnexpectedUnsolicitedData)
	assert.Equal(t, scsi.StatusCheckCondition, r.Status)
	s, ok := scsi.ParseSense(r.Sense())
	require.True(t, ok)
	assert.Equal(t, scsi.Sense{Key: scsi.KeyAbortedCommand, Code: scsi.CodeUnexpectedUnsolicitedData}, s)
	full := scsi.Sense{Key: scsi.KeyIllegalRequest, Info: 1, InfoValid: true, CommandInfo: 1, FieldValid: true}
	r.SetSense(&full, true)
	assert.Len(t, r.Sense(), scsi.MaxSense)
}

func TestError(t *testing.T) {
	cdb := scsi.Read(5, 1, 0)
	assert.NoError(t, scsi.NewError(cdb[:], scsi.StatusGood, nil))
	s := scsi.Sense{Key: scsi.KeyMediumError, Code: scsi.CodeUnrecoveredRead, Info: 5, InfoValid: true}
	err := fmt.Errorf("lun 0: %w", scsi.NewError(cdb[:], scsi.StatusCheckCondition, s.AppendFixed(nil)))
	assert.EqualError(t, err, "lun 0: scsi: READ(10): MEDIUM ERROR: unrecovered read error (11/00), information 5")
	var e *scsi.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, s, e.Sense)
	assert.ErrorIs(t, err, scsi.CodeUnrecoveredRead.Err())
	assert.ErrorIs(t, err, scsi.KeyMediumError.Err())
	assert.ErrorIs(t, err, &scsi.Error{Status: scsi.StatusCheckCondition})
	assert.False(t, errors.Is(err, scsi.CodeWriteError.Err()))
	assert.False(t, errors.Is(err, scsi.KeyHardwareError.Err()))
	assert.False(t, e.Temporary())

	busy := scsi.NewError(nil, scsi.StatusBusy, nil)
	assert.EqualError(t, busy, "scsi: BUSY")
	require.ErrorAs(t, busy, &e)
	assert.True(t, e.Temporary())
	bare := scsi.NewError(cdb[:], scsi.StatusCheckCondition, nil)
	assert.EqualError(t, bare, "scsi: READ(10): CHECK CONDITION without sense data")
	field := scsi.Sense{Key: scsi.KeyIllegalRequest, Code: scsi.CodeInvalidFieldInCDB, FieldValid: true, InCDB: true, Field: 1, BitValid: true, Bit: 7}
	assert.EqualError(t, scsi.NewError(nil, scsi.StatusCheckCondition, field.AppendDescriptor(nil)),
		"scsi: ILLEGAL REQUEST: invalid field in CDB (24/00), octet 1 of the CDB bit 7")
	attention := scsi.Sense{Key: scsi.KeyUnitAttention, Code: scsi.Code(0x2a42)}
	require.ErrorAs(t, scsi.NewError(nil, scsi.StatusCheckCondition, attention.AppendFixed(nil)), &e)
	assert.True(t, e.UnitAttention() && e.Temporary())
	assert.EqualError(t, e, "scsi: UNIT ATTENTION: ASC/ASCQ 2a/42")
}

func TestNames(t *testing.T) {
	for s, want := range map[scsi.Status]string{
		scsi.StatusGood: "GOOD", scsi.StatusConditionMet: "CONDITION MET", scsi.StatusReservationConflict: "RESERVATION CONFLICT",
		scsi.StatusTaskSetFull: "TASK SET FULL", scsi.StatusACAActive: "ACA ACTIVE", scsi.StatusTaskAborted: "TASK ABORTED", 0x7e: "status 0x7e",
	} {
		assert.Equal(t, want, s.String())
	}
	for k := range scsi.Key(16) {
		assert.NotEmpty(t, k.String())
	}
	assert.Equal(t, "write protected (27/00)", scsi.CodeWriteProtected.String())
}
