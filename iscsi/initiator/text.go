package initiator

import (
	"context"
	"errors"

	"goiwarp/iscsi"
)

// Bounds of a text exchange in full feature phase: a node with thousands of targets has a long answer to SendTargets.
const (
	maxTextAnswer    = 4 << 20
	maxTextExchanges = 4096
)

// Text sends text and returns the target's whole answer (RFC 7143, sections 11.10 and 11.11).
func (s *Session) Text(ctx context.Context, t iscsi.Text) (iscsi.Text, error) {
	select {
	case s.textTurn <- struct{}{}:
		defer func() { <-s.textTurn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var out iscsi.TextSplitter
	out.Load(t)
	in := iscsi.TextCollector{Limit: maxTextAnswer}
	ttt := iscsi.ReservedTag
	for range maxTextExchanges {
		sent := out.Len() == 0 // the whole text went before
		data, more := out.Next(s.maxData)
		c, err := s.call(ctx, sessionUp, func(p *iscsi.PDU) {
			h := iscsi.TextRequest(p.BHS[:])
			h.Init()
			h.SetImmediate(true)
			h.SetFinal(!more)
			h.SetContinue(more)
			h.SetTTT(ttt)
			p.Data = data
		})
		if err != nil {
			return nil, err
		}
		h := iscsi.TextResponse(c.bhs[:])
		ttt = h.TTT()
		if more {
			if h.Final() || len(c.data) > 0 {
				return nil, protocolErrorOf(iscsi.OpTextRsp, "the request was not at its end")
			}
			continue
		}
		if sent && len(c.data) == 0 && !h.Final() {
			return nil, protocolErrorOf(iscsi.OpTextRsp, "nothing said, but no end")
		}
		answer, whole, err := in.Add(c.data, h.Continue() || !h.Final())
		switch {
		case err != nil:
			return nil, err
		case whole:
			return answer, nil
		}
	}
	return nil, errors.New("initiator: text exchange without end")
}
