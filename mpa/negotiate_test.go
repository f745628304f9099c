package mpa

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func resolved(t require.TestingT, o Options) Options {
	o, err := o.resolve()
	require.NoError(t, err)
	return o
}

// CRCs are used as soon as either end wants them (RFC 5044, section 7.1.1), whichever of the two
// says so, and they are wanted unless somebody turned them off (section 4.4).
func TestNegotiateCRC(t *testing.T) {
	for _, c := range []struct {
		initiator, responder Toggle
		want                 bool
	}{
		{Default, Default, true},
		{Off, Default, true},
		{Default, Off, true},
		{On, Off, true},
		{Off, On, true},
		{Off, Off, false},
	} {
		io, ro := resolved(t, Options{CRC: c.initiator}), resolved(t, Options{CRC: c.responder})
		req := request(io, nil, 1, 1)
		require.Equal(t, c.initiator != Off, req.CRC)
		rep, r := reply(ro, &req, nil, 1, 1)
		i, err := agree(io, &req, &rep, 1, 1)
		require.NoError(t, err)
		require.Equal(t, c.want, r.CRC)
		require.Equal(t, c.want, i.CRC)
		if !rep.CRC {
			rep.CRC = true // a peer may turn them on although we did not ask
			i, err = agree(io, &req, &rep, 1, 1)
			require.NoError(t, err)
			require.True(t, i.CRC)
		}
	}
}

// Markers are each receiver's own wish, for its own direction; a sender obeys.
func TestNegotiateMarkers(t *testing.T) {
	for _, a := range []Toggle{Default, On, Off} {
		for _, b := range []Toggle{Default, On, Off} {
			io, ro := resolved(t, Options{Markers: a}), resolved(t, Options{Markers: b})
			req := request(io, nil, 1, 1)
			rep, r := reply(ro, &req, nil, 1, 1)
			i, err := agree(io, &req, &rep, 1, 1)
			require.NoError(t, err)
			require.Equal(t, a == On, i.MarkersIn)
			require.Equal(t, a == On, r.MarkersOut)
			require.Equal(t, b == On, i.MarkersOut)
			require.Equal(t, b == On, r.MarkersIn)
		}
	}
}

func TestNegotiateDepths(t *testing.T) {
	const ulp = UlpNegotiates
	for _, c := range []struct {
		name                 string
		iIRD, iORD           int // the initiator's wishes
		rIRD, rORD           int // the responder's limits
		repIRD, repORD       int // on the wire
		gotRIRD, gotRORD     int
		gotIIRD, gotIORD     int
		initiatorCannotServe bool
	}{
		{"equal", 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, false},
		{"responder is smaller", 128, 128, 16, 8, 16, 8, 16, 8, 128, 16, false},
		{"responder is larger", 4, 2, 128, 128, 2, 4, 2, 4, 4, 2, false},
		{"no Reads", 0, 0, 16, 16, 0, 0, 0, 0, 0, 0, false},
		{"responder wants none", 16, 16, 0, 0, 0, 0, 0, 0, 16, 0, false},
		{"ULP negotiates ORD", 4, ulp, 16, 8, ulp, 4, 16, 4, 4, ulp, false},
		{"ULP negotiates IRD", ulp, 4, 16, 8, 4, ulp, 4, 8, ulp, 4, false},
		{"ULP negotiates both", ulp, ulp, 16, 8, ulp, ulp, 16, 8, ulp, ulp, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := resolved(t, Options{})
			req := request(o, nil, c.iIRD, c.iORD)
			rep, r := reply(o, &req, nil, c.rIRD, c.rORD)
			require.Equal(t, c.repIRD, rep.IRD)
			require.Equal(t, c.repORD, rep.ORD)
			require.Equal(t, c.gotRIRD, r.IRD)
			require.Equal(t, c.gotRORD, r.ORD)
			require.Equal(t, c.iIRD, r.PeerIRD, "the ULP hears what the peer offered")
			require.Equal(t, c.iORD, r.PeerORD)
			i, err := agree(o, &req, &rep, c.iIRD, c.iORD)
			require.NoError(t, err)
			require.Equal(t, c.gotIIRD, i.IRD)
			require.Equal(t, c.gotIORD, i.ORD)
			require.Equal(t, c.repIRD, i.PeerIRD)
			require.Equal(t, c.repORD, i.PeerORD)
		})
	}
}

// For any wishes: neither side will have more Reads outstanding than the other serves (RFC 6581,
// section 9.1), and what the Reply says is what the responder does.
func TestNegotiateDepthsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		depth := rapid.IntRange(0, UlpNegotiates-1)
		iIRD, iORD := depth.Draw(t, "iIRD"), depth.Draw(t, "iORD")
		rIRD, rORD := depth.Draw(t, "rIRD"), depth.Draw(t, "rORD")
		o := Options{RTR: RTR(rapid.IntRange(1, 7).Draw(t, "rtr"))}
		if rapid.Bool().Draw(t, "p2p") {
			o.PeerToPeer = On
		}
		o = resolved(t, o)
		req := request(o, nil, iIRD, iORD)
		rep, r := reply(o, &req, nil, rIRD, rORD)
		i, err := agree(o, &req, &rep, iIRD, iORD)
		require.NoError(t, err)
		require.LessOrEqual(t, i.ORD, r.IRD)
		require.LessOrEqual(t, r.ORD, i.IRD)
		require.LessOrEqual(t, r.IRD, max(rIRD, 1))
		require.LessOrEqual(t, r.ORD, rORD)
		require.LessOrEqual(t, i.ORD, iORD)
		require.Equal(t, rep.IRD, r.IRD)
		require.Equal(t, rep.ORD, r.ORD)
		require.Equal(t, o.PeerToPeer == On, i.PeerToPeer)
		require.Equal(t, o.PeerToPeer == On, r.PeerToPeer)
		if i.PeerToPeer {
			require.Contains(t, []RTR{RTRSend, RTRWrite, RTRRead}, i.RTR, "one form")
			require.NotZero(t, i.RTR&r.RTR, "that the responder named")
		}
	})
}

// An initiator that cannot serve the Reads that the responder announces ends with error 6.
func TestNegotiateInsufficientIRD(t *testing.T) {
	o := resolved(t, Options{})
	req := request(o, nil, 4, 4)
	rep := Frame{Reply: true, Revision: 2, Enhanced: true, Depths: Depths{IRD: 4, ORD: 5}}
	_, err := agree(o, &req, &rep, 4, 4)
	require.ErrorIs(t, err, ErrIRD)
}

func TestNegotiateRTR(t *testing.T) {
	for _, c := range []struct {
		name                 string
		initiator, responder RTR
		rIRD                 int
		named                RTR // in the Reply
		sent                 RTR // by the initiator; 0 is error 7
	}{
		{"all", rtrAll, rtrAll, 4, rtrAll, RTRWrite},
		{"no write", RTRSend | RTRRead, rtrAll, 4, RTRSend | RTRRead, RTRRead},
		{"send only", RTRSend, rtrAll, 4, RTRSend, RTRSend},
		{"responder knows Read", rtrAll, RTRRead, 4, RTRRead, RTRRead},
		{"a Read makes the responder's IRD at least 1", RTRRead, rtrAll, 0, RTRRead, RTRRead},
		{"without IRD the responder names others", RTRRead | RTRSend, rtrAll, 0, RTRSend, RTRSend},
		{"none in common", RTRSend, RTRRead, 4, RTRRead, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			io := resolved(t, Options{PeerToPeer: On, RTR: c.initiator})
			ro := resolved(t, Options{RTR: c.responder})
			req := request(io, nil, 4, 0)
			require.True(t, req.PeerToPeer)
			require.Equal(t, c.initiator, req.RTR)
			rep, r := reply(ro, &req, nil, c.rIRD, 4)
			require.True(t, rep.PeerToPeer, "A is copied")
			require.Equal(t, c.named, rep.RTR)
			require.Equal(t, c.named, r.RTR)
			if rep.RTR&RTRRead != 0 {
				require.Positive(t, rep.IRD)
			}
			i, err := agree(io, &req, &rep, 4, 0)
			if c.sent == 0 {
				require.ErrorIs(t, err, ErrRTR)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.sent, i.RTR)
		})
	}
	t.Run("nothing asked for", func(t *testing.T) {
		o := resolved(t, Options{})
		req := Frame{Revision: 2, Enhanced: true, Depths: Depths{PeerToPeer: true, IRD: 1, ORD: 1}}
		rep, _ := reply(o, &req, nil, 4, 4)
		require.Equal(t, rtrAll, rep.RTR, "the responder says what it could do")
	})
	t.Run("A is not copied", func(t *testing.T) {
		o := resolved(t, Options{PeerToPeer: On})
		req := request(o, nil, 1, 1)
		_, err := agree(o, &req, &Frame{Reply: true, Revision: 2, Enhanced: true, Depths: Depths{IRD: 1, ORD: 1}}, 1, 1)
		require.ErrorIs(t, err, ErrRTR)
	})
	t.Run("client-server", func(t *testing.T) {
		o := resolved(t, Options{})
		req := request(o, nil, 1, 1)
		rep, r := reply(o, &req, nil, 1, 1)
		require.False(t, req.PeerToPeer || rep.PeerToPeer || r.PeerToPeer)
		require.Zero(t, r.RTR)
	})
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{
		{Revision: 3},
		{Revision: -1},
		{Revision: 1, Enhanced: On},
		{Revision: 1, PeerToPeer: On},
		{Enhanced: Off, PeerToPeer: On},
		{MaxFPDU: -1},
		{MaxFPDU: MaxULPDU + 1},
		{RTR: 8},
	} {
		_, err := o.resolve()
		require.ErrorIs(t, err, ErrLocal, "%+v", o)
	}
	o := resolved(t, Options{})
	require.Equal(t, Options{Revision: 2, RTR: rtrAll, RequestTimeout: DefaultRequestTimeout, ReplyTimeout: DefaultReplyTimeout}, o)
	req := request(resolved(t, Options{Revision: 1}), nil, 1, 1)
	require.Equal(t, Frame{Revision: 1, CRC: true}, req, "revision 1 has no IRD and ORD")
	req = request(resolved(t, Options{Enhanced: Off}), nil, 1, 1)
	require.Equal(t, Frame{Revision: 2, CRC: true}, req)
}
