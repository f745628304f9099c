package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

// check is a row of the table.
type check struct {
	name string
	what string // for the document
	run  func(*run) error
}

var checks = []check{
	{"discovery", "SendTargets names every target with its portal, to the library and to `iser discover`", discovery},
	{"login", "login, INQUIRY, NOP, logout; `iser info` and `iser ls` agree; an unknown target is refused", login},
	{"CHAP", "the right secret is let in; a wrong one and none are refused, by the library and by `iser`", chap},
	{"CHAP, mutual", "the target proves itself; one that cannot is left", chapMutual},
	{"CHAP, algorithms", "MD5 alone, SHA-256 alone", chapAlgorithms},
	{"CHAP in discovery", "targets are told to who proves who he is, and to nobody else", chapDiscovery},
	{"header digest", "agreed; 8 writers on 12 MiB, all read back and compared", func(r *run) error { return digests(r, true, false) }},
	{"data digest", "the same", func(r *run) error { return digests(r, false, true) }},
	{"both digests", "the same", func(r *run) error { return digests(r, true, true) }},
	{"I/O, immediate data", "the same with what the target lets be sent at once", func(r *run) error { return work(r, nil) }},
	{"I/O, R2T for all", "the same with ImmediateData=No", func(r *run) error {
		return work(r, func(s *iscsi.Settings) { s.NoImmediateData = true })
	}},
	{"I/O, unsolicited", "the same with InitialR2T=No", unsolicited},
	{"I/O, small PDUs and bursts", "the same with MaxRecvDataSegmentLength 4096, MaxBurstLength 16384, one R2T", func(r *run) error {
		return work(r, func(s *iscsi.Settings) {
			s.MaxRecvDataSegment, s.MaxBurstLength, s.FirstBurstLength, s.MaxOutstandingR2T = 4096, 16384, 8192, 1
		})
	}},
	{"I/O, unaligned", "any offset and length, by read, modify, write", unaligned},
	{"I/O, deep queue", "256 commands of 4 KiB at once, each answered rightly", deepQueue},
	{"iser cp", "`iser cp --verify` of 32 MiB there, and back to a file that is the same", copies},
	{"several LUNs", "REPORT LUNS, sizes, and each LUN has its own contents", multiLUN},
	{"4096-octet blocks", "writers, reads and partial writes", bigBlocks},
	{"sense data", "a read beyond the end is ILLEGAL REQUEST, LBA OUT OF RANGE, and the session goes on", senseData},
	{"persistent reservations", "two initiators: register, reserve, conflict, release, clear", func(r *run) error { return reservations(r, reserved) }},
	{"reservations, preempted", "the other takes the reservation over", func(r *run) error { return reservations(r, preempted) }},
	{"UNMAP", "what was unmapped reads as the capacity data says; neighbours keep their contents", unmap},
	{"WRITE SAME", "a pattern over 1 MiB", writeSame},
	{"COMPARE AND WRITE", "writes on a match alone", compareAndWrite},
	{"VERIFY", "the medium, and a compare that finds a difference", verify},
	{"task management", "LOGICAL UNIT RESET under I/O: each command ends, and the session goes on", taskManagement},
	{"recovery", "connections cut under 4 writers, three times: no error, nothing lost", recovery},
	{"two sessions", "two initiators on one LUN see each other's writes", twoSessions},
}

func discovery(r *run) error {
	targets, err := r.discover(r.peer.addr, iscsi.CHAPInitiatorConfig{})
	if err != nil {
		return err
	}
	for _, want := range []string{openTarget, chapTarget, mutualTarget} {
		i := slices.IndexFunc(targets, func(t iscsi.TargetInfo) bool { return t.Name == want })
		if i < 0 {
			return fmt.Errorf("%s is not among %v", want, targets)
		}
		if !slices.ContainsFunc(targets[i].Portals, func(p iscsi.Portal) bool { return strings.HasPrefix(p.String(), r.peer.addr) }) {
			return fmt.Errorf("%s is not at %s but at %v", want, r.peer.addr, targets[i].Portals)
		}
	}
	args := []string{"discover", r.peer.addr}
	if r.peer.scheme == "iser" {
		args = append(args, "--iser")
	}
	out, err := r.tool(args...)
	if err == nil && !strings.Contains(out, openTarget) {
		err = fmt.Errorf("iser discover says %q", out)
	}
	return err
}

func login(r *run) error {
	var vendor string
	err := r.session(func(s *initiator.Session) error {
		q, err := s.LUN(r.peer.luns[0].number).Inquiry(r.ctx)
		if err != nil {
			return err
		}
		vendor = strings.TrimSpace(q.Vendor)
		return s.Ping(r.ctx)
	})
	if err != nil {
		return err
	}
	url := r.peer.url(openTarget, r.peer.luns[0].number)
	out, err := r.tool("info", url)
	if err != nil {
		return err
	}
	if vendor == "" || !strings.Contains(out, vendor) {
		return fmt.Errorf("iser info does not tell the vendor %q: %s", vendor, out)
	}
	if out, err = r.tool("ls", url[:strings.LastIndexByte(url, '/')]); err != nil {
		return err
	}
	if !strings.Contains(out, "64 MiB") {
		return fmt.Errorf("iser ls says %s", out)
	}
	return refused(r.dial(openTarget + "-not"))
}

// refused wants a login that the target refused.
func refused(s *initiator.Session, err error) error {
	var e *iscsi.LoginError
	switch {
	case err == nil:
		s.Close()
		return errors.New("was let in")
	case !errors.As(err, &e):
		return fmt.Errorf("want a refused login, not: %w", err)
	}
	return nil
}

// admitted wants a login that works and a disk that can be read.
func (r *run) admitted(s *initiator.Session, err error) error {
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.LUN(r.peer.luns[0].number).TestUnitReady(r.ctx); err != nil {
		return err
	}
	return s.Logout(r.ctx)
}

func chap(r *run) error {
	if err := r.admitted(r.dial(chapTarget, withCHAP(secret, ""))); err != nil {
		return err
	}
	if err := refused(r.dial(chapTarget, withCHAP("not-this-secret", ""))); err != nil {
		return fmt.Errorf("a wrong secret: %w", err)
	}
	if err := refused(r.dial(chapTarget)); err != nil {
		return fmt.Errorf("no secret: %w", err)
	}
	right, err := r.secretFile("right", secret)
	if err != nil {
		return err
	}
	wrong, err := r.secretFile("wrong", "not-this-secret")
	if err != nil {
		return err
	}
	url := r.peer.url(chapTarget, r.peer.luns[0].number)
	if _, err := r.tool("info", url, "--chap-user", user, "--chap-secret-file", right); err != nil {
		return err
	}
	_, err = r.tool("info", url, "--chap-user", user, "--chap-secret-file", wrong)
	if err == nil {
		return errors.New("iser with a wrong secret was let in")
	}
	for _, s := range []string{secret, "not-this-secret"} {
		if strings.Contains(err.Error(), s) {
			return fmt.Errorf("iser tells the secret: %w", err)
		}
	}
	return nil
}

func chapMutual(r *run) error {
	if err := r.admitted(r.dial(mutualTarget, withCHAP(secret, targetSecret))); err != nil {
		return err
	}
	if err := refused(r.dial(mutualTarget, withCHAP(secret, "another-secret1"))); err != nil {
		return fmt.Errorf("a target that does not know its secret: %w", err)
	}
	own, err := r.secretFile("own", secret)
	if err != nil {
		return err
	}
	theirs, err := r.secretFile("theirs", targetSecret)
	if err != nil {
		return err
	}
	_, err = r.tool("info", r.peer.url(mutualTarget, r.peer.luns[0].number),
		"--chap-user", user, "--chap-secret-file", own, "--mutual-secret-file", theirs, "--mutual-user", targetUser)
	return err
}

func chapAlgorithms(r *run) error {
	with := func(list ...iscsi.CHAPAlgorithm) error {
		return r.admitted(r.dial(chapTarget, withCHAP(secret, ""), initiator.WithConfig(func(c *initiator.Config) { c.CHAP.Algorithms = list })))
	}
	if err := with(iscsi.CHAPMD5); err != nil {
		return err
	}
	if err := with(iscsi.CHAPSHA256); err != nil {
		return absentf("SHA-256 by itself: %v", err)
	}
	return nil
}

func chapDiscovery(r *run) error {
	if r.peer.guarded == "" {
		return absentf("discovery cannot be guarded by CHAP")
	}
	targets, err := r.discover(r.peer.guarded, credentials(secret, ""))
	if err != nil {
		return err
	}
	if len(targets) == 0 {
		return errors.New("tells no target")
	}
	for what, c := range map[string]iscsi.CHAPInitiatorConfig{"no secret": {}, "a wrong secret": credentials("not-this-secret", "")} {
		var e *iscsi.LoginError
		if _, err := r.discover(r.peer.guarded, c); !errors.As(err, &e) {
			return fmt.Errorf("%s: want a refused login, not: %w", what, err)
		}
	}
	return nil
}

func senseData(r *run) error {
	return r.disk(func(l *initiator.LUN) error {
		c, err := l.Capacity(r.ctx)
		if err != nil {
			return err
		}
		buf, err := l.Alloc(4096)
		if err != nil {
			return err
		}
		defer buf.Release()
		if err := l.ReadBuf(r.ctx, c.Blocks, 1, buf); !errors.Is(err, scsi.CodeLBAOutOfRange.Err()) {
			return fmt.Errorf("a read beyond the end: %w", err)
		}
		return l.ReadBuf(r.ctx, c.Blocks-1, 1, buf)
	})
}
