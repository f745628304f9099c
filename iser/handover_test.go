package iser_test

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iser"
	"goiwarp/rnic"
	"goiwarp/rnic/soft"
)

// TestHandoverOrder: the primitives come in RFC 5047's order (sections 8.4 to 8.6, 8.8), and what a login that fails has allocated is
// given back.
func TestHandoverOrder(t *testing.T) {
	w := newWorld(t, setup{})
	resources := iscsi.ConnectionResources{Target: true, Window: 16, RecvDataSegment: 8192}
	final := func() *iscsi.PDU { return &iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpLoginRsp, 0x87, 1))} }
	begin := func(t *testing.T, target bool) (*iser.Handover, net.Conn, *notes) {
		near, far := net.Pipe()
		cfg := iser.HandoverConfig{Config: w.gConfig}
		h, err := iser.NewInitiatorHandover(near, cfg)
		if target {
			h, err = iser.NewTargetHandover(near, nil, cfg)
		}
		require.NoError(t, err)
		require.True(t, h.Info().Handover)
		require.False(t, h.Info().RDMA)
		n := newNotes()
		h.Start(n)
		t.Cleanup(func() {
			require.NoError(t, far.Close())
			h.ConnectionTerminate(false)
			<-h.Done()
		})
		return h, far, n
	}
	t.Run("target", func(t *testing.T) {
		h, _, _ := begin(t, true)
		require.Error(t, h.EnableDatamover(final()), "nothing is known")
		require.Error(t, h.AllocateConnectionResources(resources), "nothing is negotiated")
		p := params()
		h.NoticeKeyValues(p)
		require.Error(t, h.EnableDatamover(final()), "nothing is allocated")
		require.NoError(t, h.AllocateConnectionResources(resources))
		require.NoError(t, h.AllocateConnectionResources(resources), "again")
		require.Positive(t, w.gDom.Stats().CreditsGiven)
		require.Zero(t, h.Stats(), "there is no queue pair yet")
		require.Error(t, h.EnableDatamover(nil), "a target has a final Login Response")
		h.DeallocateConnectionResources()
		require.Zero(t, w.gDom.Stats().CreditsGiven)
		require.Zero(t, w.gDom.Stats().Connections)
	})
	t.Run("too much", func(t *testing.T) {
		h, _, _ := begin(t, true)
		h.NoticeKeyValues(params())
		var re *iser.ResourceError
		require.ErrorAs(t, h.AllocateConnectionResources(iscsi.ConnectionResources{Target: true, Window: 1 << 24, RecvDataSegment: 8192}), &re)
		require.Zero(t, w.gDom.Stats().Connections)
	})
	t.Run("nobody goes on without RDMA", func(t *testing.T) {
		h, _, _ := begin(t, false)
		require.NoError(t, h.AllocateConnectionResources(resources))
		p := *params()
		p.RDMAExtensions = false
		h.NoticeKeyValues(&p)
		err := h.EnableDatamover(nil)
		require.ErrorIs(t, err, iscsi.ErrNoRDMA)
		var he *iser.HandoverError
		require.ErrorAs(t, err, &he)
		require.Equal(t, iser.PhaseLogin, he.Phase)
	})
	t.Run("no data during login", func(t *testing.T) {
		h, _, _ := begin(t, true)
		_, err := h.Alloc(1)
		require.Error(t, err)
		require.Error(t, h.GetData(&iscsi.DataOut{}))
	})
	t.Run("the peer closes", func(t *testing.T) {
		h, far, n := begin(t, true)
		require.NoError(t, far.Close())
		require.NoError(t, wait(t, n.ended))
		<-h.Done()
	})
	t.Run("a PDU is cut", func(t *testing.T) {
		h, far, n := begin(t, true)
		_, err := far.Write(make([]byte, 47))
		require.NoError(t, err)
		require.NoError(t, far.Close())
		err = wait(t, n.ended)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.ErrorIs(t, err, iscsi.ErrConnection)
		<-h.Done()
	})
	t.Run("a PDU is too long", func(t *testing.T) {
		_, far, n := begin(t, true)
		m := make([]byte, 48)
		m[0], m[5] = 0x43, 0xff
		_, err := far.Write(m)
		require.NoError(t, err)
		var le *iser.LengthError
		require.ErrorAs(t, wait(t, n.ended), &le)
	})
}

// TestHandoverNeedsTheDevice: one that cannot take a stream over is told before anything is sent.
func TestHandoverNeedsTheDevice(t *testing.T) {
	dev := soft.New(soft.Config{Without: rnic.CapStreamUpgrade})
	dom, err := iser.NewDomain(dev, iser.DomainConfig{})
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	d := iser.HandoverDialer{Config: iser.HandoverConfig{Config: iser.Config{Domain: dom}}}
	_, err = d.Dial(context.Background(), ln.Addr().String())
	require.ErrorIs(t, err, iser.ErrNoUpgrade)
	_, err = iser.NewTargetHandover(nil, make([]byte, 49), iser.HandoverConfig{})
	require.Error(t, err, "more was read ahead than the login can take over")
	require.NoError(t, ln.Close())
	require.NoError(t, dom.Close())
	require.NoError(t, dev.Close())
}
