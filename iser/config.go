package iser

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"goiwarp/iscsi"
	"goiwarp/rnic"
)

// WriteBase is what the Write Base Offset of a SCSI Command means when a part of the data-out travels
// unsolicited (with the command, or in Data-Out PDUs).
//
//	             Unsolicited                 solicited
//	data-out   |-------------|------------------------------------|
//	           ^ WriteBaseRFC ^ WriteBaseLinux
type WriteBase uint8

// Readings of the Write Base Offset.
const (
	// WriteBaseAuto is WriteBaseLinux with a peer that sends the iSER CM header, WriteBaseRFC otherwise.
	WriteBaseAuto WriteBase = iota
	// WriteBaseLinux: the base is the first solicited octet, as ib_iser, libiscsi and isert have it
	// (and as RFC 7145 has it after TaggedBufferForSolicitedDataOnly=Yes).
	WriteBaseLinux
	// WriteBaseRFC: the base is the first octet of all data-out, unless TaggedBufferForSolicitedDataOnly=Yes was
	// declared (RFC 7145, sections 6.9 and 7.3.6).
	WriteBaseRFC
)

func (w WriteBase) String() string {
	switch w {
	case WriteBaseAuto:
		return "auto"
	case WriteBaseLinux:
		return "past unsolicited data (Linux)"
	case WriteBaseRFC:
		return "start of all data (RFC 7145)"
	}
	return fmt.Sprintf("write base %d", uint8(w))
}

// Defaults of Config.
const (
	DefaultBufferMemory      = 16 << 20
	DefaultIRD               = 32
	DefaultORD               = 32
	DefaultSendDepth         = 128
	DefaultRecvDepth         = 256
	DefaultDisconnectTimeout = 5 * time.Second
	DefaultHelloTimeout      = 10 * time.Second
)

// Config is one connection's configuration. Zero values mean the defaults.
type Config struct {
	// Domain has the device, the receives and the buffers. Required by Accept and Connect; Dial
	// makes one for the connection alone if it is nil.
	Domain *Domain
	// Link tunes what lies below, for Dial.
	Link *rnic.LinkOptions

	// IRD is how many RDMA Reads of the peer are served at once; ORD how many this side would have
	// outstanding. The initiator serves (default 32) and never reads (it offers 1, as Linux does); the target reads
	// (default 32) and serves one, for Ready-To-Receive messages. Both are lowered to what the device and the peer can do.
	IRD, ORD int
	// AllowNoReads lets a target accept an initiator that serves no RDMA Reads (IRD 0) and so can write
	// unsolicited data only; a GetData then ends the connection (RFC 7145, section 7.3.6). Without it such a
	// connection is refused with ErrNoReads.
	AllowNoReads bool

	// WriteBase forces a reading of the Write Base Offset.
	WriteBase WriteBase
	// ZeroBased offers zero-based addresses; they are used where the peer and the device agree. Off by
	// default: Linux peers refuse them.
	ZeroBased bool
	// NoSendInvalidate keeps from agreeing on Send with Invalidate.
	NoSendInvalidate bool

	// BufferMemory is the share of the domain's buffers that the connection may have lent at once, in
	// octets; default 16 MiB.
	BufferMemory int
	// SendDepth is the depth of the send queue in work requests; default 128. More waits in a list.
	SendDepth int
	// RecvDepth is the depth of the receive queue on a device without shared receive queues; default 256.
	RecvDepth int
	// DisconnectTimeout bounds how long a graceful end may take until it is forced; default 5 s.
	DisconnectTimeout time.Duration
	// HelloTimeout bounds the wait for the peer's Hello or HelloReply where iSERHelloRequired=Yes was agreed; default 10 s.
	HelloTimeout time.Duration
	// Log is the connection's; the domain's if nil.
	Log *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if c.Domain == nil {
		return c, fmt.Errorf("iser: Config.Domain is nil")
	}
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.IRD, DefaultIRD)
	def(&c.ORD, DefaultORD)
	def(&c.BufferMemory, DefaultBufferMemory)
	def(&c.SendDepth, DefaultSendDepth)
	def(&c.RecvDepth, DefaultRecvDepth)
	if c.DisconnectTimeout == 0 {
		c.DisconnectTimeout = DefaultDisconnectTimeout
	}
	if c.HelloTimeout <= 0 {
		c.HelloTimeout = DefaultHelloTimeout
	}
	if c.Log == nil {
		c.Log = c.Domain.log
	}
	if c.IRD < 0 || c.ORD < 0 || c.BufferMemory < 0 || c.SendDepth < 4 || c.RecvDepth < 4 || c.WriteBase > WriteBaseRFC {
		return c, fmt.Errorf("iser: Config out of range: IRD %d, ORD %d, BufferMemory %d, SendDepth %d, RecvDepth %d, WriteBase %d",
			c.IRD, c.ORD, c.BufferMemory, c.SendDepth, c.RecvDepth, c.WriteBase)
	}
	if m := c.Domain.attr.MaxQPWR; m > 0 {
		c.SendDepth, c.RecvDepth = min(c.SendDepth, m), min(c.RecvDepth, m)
	}
	return c, nil
}

// Data segments that a peer takes, and PDUs beyond the command window that receives are kept for.
const (
	linuxRecvDataSegment = 128 // of ib_iser in full feature phase, whatever it negotiated
	loginReceives        = 4
	miscReceives         = 16
	maxTracked           = 256 // outstanding unexpected PDUs that are counted; larger limits count as none
)

// maxSend is the most octets of data segment that the peer takes now.
func (d *Datamover) maxSend() int {
	switch {
	case d.phase != phaseFull || d.params.Discovery:
		return loginDataSegment
	case d.target && d.peerCM:
		return linuxRecvDataSegment
	case d.target && d.params.InitiatorRecvDataSegmentLength > 0:
		return d.params.InitiatorRecvDataSegmentLength
	case !d.target && d.params.TargetRecvDataSegmentLength > 0:
		return d.params.TargetRecvDataSegmentLength
	}
	return loginDataSegment
}

// credits is how many receives the connection needs, and how many PDUs the iSCSI layer may hold.
// A PDU may still be held when the command that follows it has arrived, hence twice the window.
func (d *Datamover) credits() int {
	n := loginReceives + d.window
	if d.window > 0 {
		n += miscReceives
	}
	if own := d.params.OwnMaxOutstandingUnexpectedPDUs; own > miscReceives {
		n += int(min(own, maxTracked))
	}
	return n
}

// unsolicitedPDUs is how many Data-Out PDUs the initiator may send unasked for all commands of its
// window together (RFC 7145, section 8.1.1.2).
func (d *Datamover) unsolicitedPDUs() int {
	p := &d.params
	if !d.target || p.InitialR2T || p.FirstBurstLength <= 0 || p.TargetRecvDataSegmentLength <= 0 {
		return 0
	}
	per := (p.FirstBurstLength + p.TargetRecvDataSegmentLength - 1) / p.TargetRecvDataSegmentLength
	return d.window * min(per, 256)
}

// unexpected counts the PDUs that the peer did not ask for and has not retired yet (RFC 7145,
// section 8.1): numbers of their sequence, oldest first.
type unexpected struct {
	limit int // 0: none
	sns   []iscsi.SN
	ping  struct { // a target's newest one
		ttt uint32
		sn  iscsi.SN
	}
}

func (u *unexpected) setLimit(n uint32) {
	u.limit = 0
	if n > 0 && n <= maxTracked {
		u.limit = int(n)
		u.sns = make([]iscsi.SN, 0, u.limit)
		u.ping.ttt = iscsi.ReservedTag
	}
}

// add counts a PDU with the sequence number sn; false if the limit, less reserve, is reached.
func (u *unexpected) add(sn iscsi.SN, reserve int) bool {
	if u.limit == 0 {
		return true
	}
	if len(u.sns) >= u.limit-reserve {
		return false
	}
	u.sns = append(u.sns, sn)
	return true
}

// pinged notes that what was added last is a ping with that tag.
func (u *unexpected) pinged(ttt uint32) {
	if n := len(u.sns); n > 0 {
		u.ping.ttt, u.ping.sn = ttt, u.sns[n-1]
	}
}

// answered takes off a ping that the peer has answered: it has used up no number, so that nothing else may retire it for long.
func (u *unexpected) answered(ttt uint32) {
	if ttt == iscsi.ReservedTag || ttt != u.ping.ttt {
		return
	}
	u.ping.ttt = iscsi.ReservedTag
	if i := slices.Index(u.sns, u.ping.sn); i >= 0 {
		u.sns = slices.Delete(u.sns, i, i+1)
	}
}

// retire takes off what the peer's expected number has passed.
func (u *unexpected) retire(exp iscsi.SN) {
	keep := u.sns[:0]
	for _, sn := range u.sns {
		if int32(exp-sn) <= 0 {
			keep = append(keep, sn)
		}
	}
	u.sns = keep
}
