package iser_test

import (
	"testing"

	"goiwarp/iscsi"
	"goiwarp/iser"
)

// FuzzTargetInbound sends arbitrary messages to a target in full feature phase, split at the octets 0xff 0x00:
// the connection goes on or ends, and everything is given back.
func FuzzTargetInbound(f *testing.F) {
	sep := []byte{0xff, 0x00}
	f.Add([]byte{})
	f.Add(pdu(nil, bhs(iscsi.OpNOPOut, 0x80, 5), []byte{1, 2, 3}))
	f.Add(append(append(pdu(header(0, 0x100, 0, 0), command(0xc1, 1, 100), nil), sep...), pdu(nil, dataOut(1, 0, true), []byte{1})...))
	f.Add(append(append(iser.AppendHello(nil, 1), sep...), iser.AppendHelloReply(nil, 1, true)...))
	f.Add(pdu(header(0x100, 0, 1<<63, 0), command(0xa1, 1, 1<<20), make([]byte, 512)))
	w := newWorld(f, setup{})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, g, n := w.rawInitiator(t, linux, 4)
		enter(t, p, g, n, params())
		for len(b) > 0 {
			m := b
			for k := 0; k+1 < len(b); k++ {
				if b[k] == sep[0] && b[k+1] == sep[1] {
					m = b[:k]
					break
				}
			}
			b = b[min(len(b), len(m)+len(sep)):]
			if len(m) > 8192 || p.qp.PostSend(sendOf(p, m)) != nil {
				break
			}
		}
		if p.qp.Disconnect() == nil {
			<-g.Done()
		}
	})
}
