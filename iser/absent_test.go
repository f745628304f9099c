package iser_test

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iser"
)

// libiscsiWrite is a WRITE (10) of one block as libiscsi 1.19 sends it over iSER once immediate data is agreed upon: a data segment of
// 512 octets in the header, none behind it.
const libiscsiWrite = "18000000" + "63c4d100" + "00007f73200d9180" + "00000000" + "0000000000000000" +
	"01a10000" + "00000200" + "0000000000000000" + "2c1eb83e" + "00000200" + "0c4ef050" + "0000032a" +
	"00000000000000000100000000000000"

// claim is a message whose header tells of n octets of data that are not there.
func claim(h iser.Header, b iscsi.BHS, n int) []byte {
	m := pdu(h, b, nil)
	iscsi.BHS(m[iser.HeaderLen:]).SetDataLen(n)
	return m
}

// TestAbsentImmediateData: a command's data is read where its Write STag shows it, from the first octet, if none came with it.
func TestAbsentImmediateData(t *testing.T) {
	const total = 5000
	w := newWorld(t, setup{})
	p, g, n := w.rawInitiator(t, linux, 4)
	keys := params()
	keys.InitialR2T = false
	enter(t, p, g, n, keys)
	out := pattern(p.data.Bytes()[:total])

	captured, err := hex.DecodeString(libiscsiWrite)
	require.NoError(t, err)
	p.send(captured)
	got := wait(t, n.pdus)
	require.Empty(t, got.Data)
	require.Zero(t, iscsi.BHS(got.BHS[:]).DataLen())
	require.Equal(t, captured[28+8:], got.BHS[8:], "nothing else is touched")

	p.send(claim(header(p.data.STag(), 0, p.data.Addr(), 0), command(0xa1, 7, total), total))
	require.Empty(t, wait(t, n.pdus).Data)
	b, err := g.Alloc(total)
	require.NoError(t, err)
	defer b.Release()
	require.NoError(t, g.GetData(&iscsi.DataOut{ITT: 7, Buf: b, Len: total}))
	require.NoError(t, wait(t, n.done))
	require.True(t, bytes.Equal(out, b.Bytes()))

	// More than one PDU would hold: announced by F=0 and by a Data-Out that is as empty.
	first := command(0x21, 8, total)
	p.send(claim(header(p.data.STag(), 0, p.data.Addr(), 0), first, 4000))
	p.send(claim(nil, dataOut(8, 4000, true), 1000))
	p.send(pdu(nil, bhs(iscsi.OpNOPOut, 0x80, 9), []byte("ping")))
	got = wait(t, n.pdus)
	require.True(t, iscsi.BHS(got.BHS[:]).Final(), "nothing unsolicited is to come")
	require.Empty(t, got.Data)
	require.Equal(t, "ping", string(wait(t, n.pdus).Data), "the Data-Out means nothing")
	clear(b.Bytes())
	require.NoError(t, g.GetData(&iscsi.DataOut{ITT: 8, Buf: b, Len: total}))
	require.NoError(t, wait(t, n.done))
	require.True(t, bytes.Equal(out, b.Bytes()))
}

// TestMissingDataIsAnError: a data segment that is there in part, or that nothing else could take the place of, ends the connection.
func TestMissingDataIsAnError(t *testing.T) {
	for name, msg := range map[string]func(p *peer) []byte{
		"in part": func(p *peer) []byte {
			return append(claim(header(p.data.STag(), 0, p.data.Addr(), 0), command(0xa1, 7, 512), 512), 1, 2, 3, 4)
		},
		"without a Write STag":                        func(*peer) []byte { return claim(nil, command(0xa1, 7, 512), 512) },
		"of a Data-Out, but the command had its data": func(*peer) []byte { return claim(nil, dataOut(7, 0, true), 512) },
		"of another PDU":                              func(*peer) []byte { return claim(nil, bhs(iscsi.OpNOPOut, 0x80, 7), 512) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, setup{})
			p, g, n := w.rawInitiator(t, linux, 4)
			enter(t, p, g, n, params())
			p.send(msg(p))
			require.ErrorContains(t, wait(t, n.ended), "control PDU")
		})
	}
}
