package mpa

// request builds the initiator's Request. opts have been resolved.
func request(opts Options, private []byte, ird, ord int) Frame {
	f := Frame{
		Markers:     opts.Markers.on(false),
		CRC:         opts.CRC.on(true),
		Enhanced:    opts.Enhanced.on(true),
		Revision:    opts.Revision,
		PrivateData: private,
	}
	if f.Enhanced {
		f.Depths = Depths{PeerToPeer: opts.PeerToPeer == On, RTR: opts.RTR, IRD: ird, ORD: ord}
	}
	return f
}

// checkRequest says whether a responder with these options can serve the Request.
func checkRequest(opts Options, req *Frame) error {
	switch {
	case req.Revision < 1 || req.Revision > opts.Revision:
		return errorf(CodeFrame, "Request of revision %d, we serve 1 to %d", req.Revision, opts.Revision)
	case req.Enhanced && !opts.Enhanced.on(true):
		return errorf(CodeFrame, "enhanced Request, which is turned off here")
	}
	return nil
}

// reply builds the responder's accepting Reply and what follows from it.
func reply(opts Options, req *Frame, private []byte, ird, ord int) (Frame, *Params) {
	f := Frame{
		Reply:       true,
		Markers:     opts.Markers.on(false),
		CRC:         opts.CRC.on(true) || req.CRC,
		Enhanced:    req.Enhanced,
		Revision:    req.Revision,
		PrivateData: private,
	}
	p := &Params{
		Role:        Responder,
		Revision:    f.Revision,
		Enhanced:    f.Enhanced,
		CRC:         f.CRC,
		MarkersIn:   f.Markers,
		MarkersOut:  req.Markers,
		IRD:         ird,
		ORD:         ord,
		PrivateData: req.PrivateData,
	}
	if !f.Enhanced {
		return f, p
	}
	p.PeerIRD, p.PeerORD = req.IRD, req.ORD
	p.PeerToPeer = req.PeerToPeer
	if req.PeerToPeer {
		// The forms that both know. If there are none, our own: it is up to the initiator to
		// give up (RFC 6581, section 9.2).
		if p.RTR = req.RTR & opts.RTR; p.RTR == 0 {
			p.RTR = opts.RTR
		}
		f.PeerToPeer, f.RTR = true, p.RTR
	}
	// Our IRD need not be deeper than what the initiator will use, but a Ready-To-Receive Read
	// needs a place even where the ULP wants no Reads.
	if req.ORD == UlpNegotiates {
		f.IRD = UlpNegotiates
	} else {
		want := req.ORD
		if p.RTR&RTRRead != 0 {
			want = max(want, 1)
		}
		p.IRD = min(ird, want)
		if p.IRD == 0 && p.RTR&RTRRead != 0 {
			if p.RTR != RTRRead {
				p.RTR &^= RTRRead
				f.RTR = p.RTR
			} else {
				p.IRD = 1
			}
		}
		f.IRD = p.IRD
	}
	if req.IRD == UlpNegotiates {
		f.ORD = UlpNegotiates
	} else {
		p.ORD = min(ord, req.IRD)
		f.ORD = p.ORD
	}
	return f, p
}

// rejection builds the responder's refusing Reply.
func rejection(opts Options, req *Frame, private []byte, ird, ord int) Frame {
	f := Frame{
		Reply:       true,
		CRC:         opts.CRC.on(true) || req.CRC,
		Reject:      true,
		Enhanced:    req.Enhanced,
		Revision:    req.Revision,
		PrivateData: private,
	}
	if f.Enhanced {
		f.Depths = Depths{PeerToPeer: req.PeerToPeer, RTR: req.RTR & opts.RTR, IRD: ird, ORD: ord}
		if f.RTR == 0 {
			f.RTR = opts.RTR
		}
	}
	return f
}

// checkReply says whether rep can be the answer to req.
func checkReply(req, rep *Frame) error {
	switch {
	case rep.Revision < 1 || rep.Revision > req.Revision:
		return errorf(CodeFrame, "Reply of revision %d to a Request of revision %d", rep.Revision, req.Revision)
	case rep.Reject:
		return nil // whatever its format: the answer is no
	case rep.Enhanced != req.Enhanced:
		return errorf(CodeFrame, "enhanced %t in the Reply, %t in the Request", rep.Enhanced, req.Enhanced)
	}
	return nil
}

// agree works out the initiator's parameters from an accepting Reply. The error, if any, is one
// that the connection has to be terminated with after the startup: CodeIRD or CodeRTR.
func agree(opts Options, req, rep *Frame, ird, ord int) (*Params, error) {
	p := &Params{
		Role:        Initiator,
		Revision:    rep.Revision,
		Enhanced:    rep.Enhanced,
		CRC:         req.CRC || rep.CRC,
		MarkersIn:   req.Markers,
		MarkersOut:  rep.Markers,
		IRD:         ird,
		ORD:         ord,
		PrivateData: rep.PrivateData,
	}
	if !rep.Enhanced {
		return p, nil
	}
	p.PeerIRD, p.PeerORD = rep.IRD, rep.ORD
	p.PeerToPeer = req.PeerToPeer
	if rep.IRD != UlpNegotiates && ord != UlpNegotiates {
		p.ORD = min(ord, rep.IRD)
	}
	if rep.ORD != UlpNegotiates && ird != UlpNegotiates && rep.ORD > ird {
		return p, errorf(CodeIRD, "responder wants %d outstanding Reads, we serve %d", rep.ORD, ird)
	}
	if !p.PeerToPeer {
		return p, nil
	}
	if !rep.PeerToPeer {
		return p, errorf(CodeRTR, "responder did not take up the peer-to-peer model")
	}
	// A Write costs the responder nothing; a Read needs a place in its queue, a Send consumes a
	// receive of its ULP.
	common := opts.RTR & rep.RTR
	switch {
	case common&RTRWrite != 0:
		p.RTR = RTRWrite
	case common&RTRRead != 0 && rep.IRD > 0:
		p.RTR = RTRRead
	case common&RTRSend != 0:
		p.RTR = RTRSend
	default:
		return p, errorf(CodeRTR, "we do %v, the responder %v", opts.RTR, rep.RTR)
	}
	return p, nil
}
