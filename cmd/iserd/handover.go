package main

import (
	"context"
	"net"

	"goiwarp/iscsi"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
	"goiwarp/rnic"
)

// login makes the Datamover of a connection that begins with an iSCSI login. Where the device can, its initiator may go on in iSER behind
// that login (RFC 7145, section 5.1); all others go on as plain iSCSI.
func (f *fabric) login(_ context.Context, conn net.Conn, read []byte) (iscsi.Datamover, error) {
	as := f.shape.Load()
	cfg := tcp.Config{Pool: f.pool, Memory: as.share, Log: f.log}
	if !f.dev.Attributes().Caps.Has(rnic.CapStreamUpgrade) {
		return tcp.NewTarget(conn, cfg, read), nil
	}
	h, err := iser.NewTargetHandover(conn, read, iser.HandoverConfig{
		Config: iser.Config{Domain: f.domain, Link: as.link, BufferMemory: as.memory, Log: f.log},
		Plain:  func(conn net.Conn) iscsi.Datamover { return tcp.NewTarget(conn, cfg, nil) },
	})
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return h, nil
}
