package iser

import (
	"bytes"
	"testing"

	"goiwarp/iscsi"
	"goiwarp/rnic"
)

// FuzzParse decodes arbitrary messages: what is accepted encodes to the same octets, but for reserved
// and unused fields of the header, and the roles' bookkeeping takes it without harm.
func FuzzParse(f *testing.F) {
	for _, s := range capturedSends(f) {
		f.Add(s.msg)
	}
	f.Add(AppendHello(nil, 1))
	f.Add(AppendHelloReply(nil, 1, true))
	f.Fuzz(func(t *testing.T, msg []byte) {
		if h, err := ParseHello(msg); err == nil {
			_ = h.String()
		}
		if h, err := ParseHelloReply(msg); err == nil {
			_ = h.String()
		}
		if p, ok := ParsePrivate(msg); ok {
			_ = p.String()
		}
		if len(msg) < HeaderLen {
			return
		}
		h := Header(msg)
		_ = h.String()
		var p iscsi.PDU
		if parse(&p, msg) != nil {
			return
		}
		again := encode(h, &p, false)
		if !bytes.Equal(again, msg[:len(again)]) {
			t.Fatalf("%x became %x", msg, again)
		}
		target := &Datamover{target: true, window: 1, remote: map[uint32]mapping{}}
		_ = target.account(&p, h, rnic.STag(len(msg)))
		_ = target.account(&p, h, 0)
		initiator := &Datamover{tasks: map[uint32]*task{}}
		_ = initiator.account(&p, h, 0)
	})
}
