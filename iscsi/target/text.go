package target

import (
	"goiwarp/iscsi"
)

// textState is the text exchange under way (RFC 7143, section 11.10): one at a time.
type textState struct {
	open   bool
	itt    uint32
	ttt    uint32
	in     iscsi.TextCollector
	out    iscsi.TextSplitter
	params iscsi.Params // as the exchange leaves them; in force at its end
}

// textRequest takes a Text Request. c.mu is held.
func (c *conn) textRequest(p *iscsi.PDU) {
	h := iscsi.TextRequest(p.BHS[:])
	x := &c.text
	switch {
	case h.TTT() == iscsi.ReservedTag: // a new exchange; one that was under way is forgotten
		*x = textState{open: true, itt: h.ITT(), ttt: c.freshTTT(), params: *c.params}
	case !x.open || h.TTT() != x.ttt || h.ITT() != x.itt:
		c.reject(p, iscsi.RejectInvalidField, "no such text exchange")
		return
	}
	if x.out.Len() == 0 {
		t, whole, err := x.in.Add(p.Data, h.Continue())
		if err == nil && t.Duplicate() != "" {
			err = iscsi.ErrText
		}
		if err != nil {
			*x = textState{}
			c.reject(p, iscsi.RejectProtocolError, "malformed text")
			return
		}
		if !whole { // RFC 7143, section 6.2: the answer is empty until all is there
			c.textResponse(nil, false, false)
			p.Release()
			return
		}
		answer := iscsi.AnswerText(t, &x.params)
		if v, ok := t.Get(iscsi.KeySendTargets); ok {
			answer = append(answer, c.sendTargets(v)...)
		}
		x.out.Load(answer)
	} else if len(p.Data) > 0 {
		*x = textState{}
		c.reject(p, iscsi.RejectProtocolError, "text while the answer is not at its end")
		return
	}
	data, more := x.out.Next(c.maxData)
	c.textResponse(data, more, h.Final() && !more)
	if h.Final() && !more {
		if x.params != *c.params {
			*c.params = x.params
			c.dm.NoticeKeyValues(c.params)
			c.notePeer()
		}
		*x = textState{}
	}
	p.Release()
}

// textResponse answers within the exchange under way.
func (c *conn) textResponse(data []byte, more, final bool) {
	p := c.pdus.get()
	h := iscsi.TextResponse(p.BHS[:])
	h.Init()
	h.SetITT(c.text.itt)
	h.SetContinue(more)
	h.SetFinal(final)
	if !final {
		h.SetTTT(c.text.ttt)
	}
	p.Data = data
	c.respond(p)
}

// freshTTT is the next Target Transfer Tag.
func (c *conn) freshTTT() uint32 {
	c.nextTTT++
	if c.nextTTT == iscsi.ReservedTag {
		c.nextTTT = 0
	}
	return c.nextTTT
}

// sendTargets answers SendTargets (RFC 7143, appendix C). A Normal session learns of its own target only.
func (c *conn) sendTargets(value string) iscsi.Text {
	var nodes []*node
	switch value {
	case iscsi.SendTargetsAll:
		if !c.discovery {
			return iscsi.Text{{Key: iscsi.KeySendTargets, Value: iscsi.Rejected}}
		}
		nodes = c.visible(c.srv.all())
	case iscsi.SendTargetsSession:
		if c.node == nil {
			return iscsi.Text{{Key: iscsi.KeySendTargets, Value: iscsi.Rejected}}
		}
		nodes = []*node{c.node}
	default:
		name, err := iscsi.NormalizeName(value)
		if n := c.srv.node(name); err == nil && n != nil && (c.discovery || n == c.node) {
			nodes = c.visible([]*node{n})
		}
	}
	var infos []iscsi.TargetInfo
	for _, n := range nodes {
		infos = append(infos, iscsi.TargetInfo{
			Name:    n.Name,
			Portals: c.portalsOf(n),
		})
	}
	return iscsi.AppendTargets(nil, infos)
}
