package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"

	"goiwarp/cmd/iserd/internal/config"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/target"
)

// plan is the way from what is served to another configuration. Everything that can fail for a reason outside of iserd is done in
// prepare, which changes nothing; what commit does then is expected to succeed.
type plan struct {
	d     *daemon
	next  *config.Config
	force bool // shrinking is wanted
	errs  config.Errors

	discovery *target.Access
	access    map[string]*target.Access // by target
	gone      []string                  // targets
	removed   []lunAt
	opened    map[lunAt]*disk // to be added
	deferred  []lunAt         // to be opened once the disk that has their file is closed
	changes   map[lunAt]change
	portals   map[string][]*listener // newly opened
	closing   []string               // portals
	asides    [numAsides]*aside      // newly opened
	vacated   string                 // address that figures have left for another one
}

// lunAt is a place for a logical unit.
type lunAt struct {
	target string
	lun    int
}

func (a lunAt) String() string { return fmt.Sprintf("target %s: LUN %d", a.target, a.lun) }

// apply changes what is served to what next says, and nothing else: sessions that are not concerned go on. If anything of next cannot be had, the
// error is a config.Errors and all stays as it was.
func (d *daemon) apply(ctx context.Context, next *config.Config, force bool) (*report, error) {
	done, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return d.applyInTurn(ctx, next, force)
}

// begin waits for the turn to change something, which done ends. However long a change takes (for sessions to end, say), those who only look
// wait for nothing but d.mu.
func (d *daemon) begin(ctx context.Context) (done func(), err error) {
	select {
	case d.turn <- struct{}{}:
		return func() { <-d.turn }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for another change to end: %w", context.Cause(ctx))
	}
}

// locked does f while d.mu is held.
func (d *daemon) locked(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// applyInTurn is apply for who has the turn.
func (d *daemon) applyInTurn(ctx context.Context, next *config.Config, force bool) (*report, error) {
	p := &plan{
		d: d, next: next, force: force, access: make(map[string]*target.Access), opened: make(map[lunAt]*disk),
		changes: make(map[lunAt]change), portals: make(map[string][]*listener),
	}
	p.prepare(ctx)
	if len(p.errs) > 0 {
		p.abandon()
		p.errs.Sort()
		return nil, p.errs
	}
	r := &report{}
	err := p.commit(ctx, r)
	return r, err
}

func (p *plan) fail(err error) {
	var e *config.Error
	if !errors.As(err, &e) {
		e = &config.Error{Text: err.Error()}
	}
	p.errs = append(p.errs, e)
}

// prepare opens what is new and compares what is not.
func (p *plan) prepare(ctx context.Context) {
	var err error
	if p.discovery, err = accessList(&p.next.Discovery); err != nil {
		p.fail(err)
	}
	inUse := p.d.files()
	for i := range p.next.Targets {
		t := &p.next.Targets[i]
		if p.access[t.Name], err = accessList(&t.Access); err != nil {
			p.fail(err)
		}
		var now *served
		if now = p.d.targets[t.Name]; now == nil {
			now = &served{}
		}
		for _, l := range t.LUNs {
			p.prepareLUN(lunAt{t.Name, l.Number}, now.disks[l.Number], l, inUse)
		}
		for n := range now.disks {
			if t.LUN(n) == nil {
				p.removed = append(p.removed, lunAt{t.Name, n})
			}
		}
	}
	for name := range p.d.targets {
		if p.next.Target(name) == nil {
			p.gone = append(p.gone, name)
		}
	}
	slices.Sort(p.gone)
	p.refuseFixed()
	for i := range p.asides {
		p.prepareAside(i)
	}
	keys := portalKeys(p.next.Portals)
	for i, k := range keys {
		if p.d.portals[k] != nil {
			continue
		}
		if p.portals[k], err = p.d.openPortal(ctx, p.next.Portals[i], shapeOf(p.next).link); err != nil {
			p.fail(err)
		}
	}
	for k := range p.d.portals {
		if !slices.Contains(keys, k) {
			p.closing = append(p.closing, k)
		}
	}
}

func (p *plan) prepareLUN(at lunAt, now *disk, l config.LUN, inUse map[string]bool) {
	if now != nil {
		ch, err := now.changeTo(l)
		switch {
		case err != nil:
			p.fail(err)
			return
		case ch.size != 0 && ch.size < now.st.Size() && !p.force:
			p.fail(&config.Error{Pos: l.Pos, Text: fmt.Sprintf(
				"%v would lose data: it has %d octets, not %d ('iserd ctl lun resize --shrink' does it)", at, now.st.Size(), ch.size)})
			return
		case !ch.replace:
			p.changes[at] = ch
			return
		}
		p.removed = append(p.removed, at)
	}
	spec, _, err := l.Parse()
	if err != nil {
		p.fail(&config.Error{Pos: l.Pos, Text: err.Error()})
		return
	}
	if spec.Kind == "file" && inUse[absolute(spec.Path)] {
		p.deferred = append(p.deferred, at)
		return
	}
	k, err := openDisk(l, at.target, p.d.log)
	if err != nil {
		p.fail(err)
		return
	}
	p.opened[at] = k
}

// files are the paths of the disks that are open.
func (d *daemon) files() map[string]bool {
	m := make(map[string]bool)
	for _, t := range d.targets {
		for _, k := range t.disks {
			if k.spec.Kind == "file" {
				m[absolute(k.spec.Path)] = true
			}
		}
	}
	return m
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// abandon closes what was opened for nothing.
func (p *plan) abandon() {
	for _, k := range p.opened {
		k.lu.Close()
		_ = k.st.Close()
	}
	for _, lns := range p.portals {
		for _, l := range lns {
			l.close()
		}
	}
	for _, a := range p.asides {
		if a != nil {
			_ = a.ln.Close()
		}
	}
	p.returnFigures()
}

// commit makes the changes: what goes before what comes, so that a file may move from one place to another.
func (p *plan) commit(ctx context.Context, r *report) error {
	d := p.d
	before := d.cfg
	if before == nil {
		before = config.New()
	}
	ctx, cancel := context.WithTimeout(ctx, p.next.Timers.Drain)
	defer cancel()
	var errs []error
	for _, name := range p.gone {
		errs = append(errs, d.removeTarget(ctx, name, r))
	}
	for _, at := range p.removed {
		errs = append(errs, d.removeLUN(ctx, at, r))
	}
	for _, at := range p.deferred {
		k, err := openDisk(*p.next.Target(at.target).LUN(at.lun), at.target, d.log)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p.opened[at] = k
	}
	// Groups come before targets, so that a target has the ports of its groups from the beginning, and no others.
	open := maps.Clone(d.portals)
	maps.Copy(open, p.portals)
	errs = append(errs, d.server.SetPortalGroups(portalGroups(p.next.Portals, open)))
	for i := range p.next.Targets {
		errs = append(errs, p.commitTarget(before, &p.next.Targets[i], r))
	}
	if !reflect.DeepEqual(rulesOf(before.Discovery), rulesOf(p.next.Discovery)) || p.discovery != nil {
		errs = append(errs, d.server.SetDiscovery(p.discovery))
	}
	p.commitPortals(r)
	for i := range p.next.Targets {
		errs = append(errs, p.commitStates(before, &p.next.Targets[i], r))
	}
	if before.LogLevel != p.next.LogLevel && d.cfg != nil {
		errs = append(errs, d.setLevel(p.next.LogLevel))
		r.changef("log level %s", p.next.LogLevel)
	}
	if d.cfg != nil {
		errs = append(errs, p.commitSettings(before, r))
	}
	first := d.cfg == nil
	d.locked(func() { d.cfg = p.next })
	errs = append(errs, p.commitAsides(first, r)) // last: who asks there finds a configuration
	return errors.Join(errs...)
}

// rulesOf is an access list without the places where it was written.
func rulesOf(a config.Access) config.Access {
	a.Pos = config.Pos{}
	a.Rules = slices.Clone(a.Rules)
	for i := range a.Rules {
		a.Rules[i].Pos = config.Pos{}
	}
	return a
}

// commitTarget adds a target, or changes one.
func (p *plan) commitTarget(before *config.Config, t *config.Target, r *report) error {
	d := p.d
	now, was := d.targets[t.Name], before.Target(t.Name)
	if now == nil {
		now = &served{device: newDevice(t.Name, firstGroup(p.next.Portals, t.Groups)), disks: make(map[int]*disk)}
	}
	var errs []error
	for _, l := range t.LUNs {
		at := lunAt{t.Name, l.Number}
		if k := p.opened[at]; k != nil {
			errs = append(errs, now.device.Add(l.Number, k.lu))
			d.locked(func() { now.disks[l.Number] = k })
			if was != nil {
				r.changef("%v added: %s", at, l.Spec())
			}
			continue
		}
		if k := now.disks[l.Number]; k != nil {
			errs = append(errs, p.commitLUN(at, k, l, r))
		}
	}
	if was == nil {
		tc := target.Target{
			Name: t.Name, Alias: t.Alias, PortalGroup: portalGroup, PortalGroups: tags(t.Groups), Access: p.access[t.Name],
			Redirect: redirect(t.Redirect), Device: now.device,
		}
		if err := d.server.AddTarget(tc); err != nil {
			return errors.Join(append(errs, err, now.close())...)
		}
		d.locked(func() { d.targets[t.Name] = now })
		r.changef("target %s added", t.Name)
		return errors.Join(errs...)
	}
	// The access list is looked at again even where its text is the same: secrets are in files of their own.
	errs = append(errs, d.server.SetAccess(t.Name, p.access[t.Name]))
	if !reflect.DeepEqual(rulesOf(was.Access), rulesOf(t.Access)) {
		r.changef("target %s: access changed", t.Name)
	}
	if w, n := redirect(was.Redirect), redirect(t.Redirect); !reflect.DeepEqual(w, n) {
		errs = append(errs, d.server.SetRedirect(t.Name, n))
		r.changef("target %s: redirection changed", t.Name)
	}
	if was.Alias != t.Alias {
		errs = append(errs, d.server.SetAlias(t.Name, t.Alias))
		r.changef("target %s: alias changed, which initiators learn of at their next login", t.Name)
	}
	if !slices.Equal(was.Groups, t.Groups) {
		errs = append(errs, d.server.SetGroups(t.Name, tags(t.Groups)))
		r.changef("target %s: portal groups changed, for logins from now on", t.Name)
	}
	return errors.Join(errs...)
}

// commitLUN changes a disk that stays.
func (p *plan) commitLUN(at lunAt, k *disk, l config.LUN, r *report) error {
	ch := p.changes[at]
	if ch.size != 0 {
		if err := k.lu.Resize(ch.size, p.force); err != nil {
			return fmt.Errorf("%v: %w", at, err)
		}
		r.changef("%v resized to %d octets", at, ch.size)
	}
	if ch.readOnly != nil {
		k.lu.SetReadOnly(*ch.readOnly)
		r.changef("%v read-only: %v", at, *ch.readOnly)
	}
	if ch.limits != nil {
		if err := k.lu.Limiter().Set(ch.limits.iops, ch.limits.bandwidth); err != nil {
			return fmt.Errorf("%v: %w", at, err)
		}
		r.changef("%v limited to %v", at, *ch.limits)
	}
	p.d.locked(func() { k.lun = l })
	return nil
}

func tags(groups []int) []uint16 {
	var t []uint16
	for _, g := range groups {
		t = append(t, uint16(g))
	}
	return t
}

func redirect(c config.Redirect) *target.Redirect {
	if c.Address == "" {
		return nil
	}
	return &target.Redirect{Address: c.Address, Permanent: c.Permanent, From: tags(c.Groups)}
}

// commitPortals opens, tells and closes portals.
func (p *plan) commitPortals(r *report) {
	d := p.d
	slices.Sort(p.closing)
	for _, k := range p.closing {
		for _, l := range d.portals[k] {
			l.close()
			r.changef("portal %s closed", l.addr())
		}
		d.locked(func() { delete(d.portals, k) })
	}
	keys := portalKeys(p.next.Portals)
	for i, k := range keys {
		if lns := p.portals[k]; lns != nil {
			d.locked(func() { d.portals[k] = lns })
			for _, l := range lns {
				d.start(l)
				r.changef("portal %s opened", l.addr())
			}
			continue
		}
		for _, l := range d.portals[k] {
			if was := l.cfg; was.Advertise != p.next.Portals[i].Advertise || was.Group != p.next.Portals[i].Group {
				r.changef("portal %s changed", l.addr())
			}
			d.locked(func() { l.tell(p.next.Portals[i]) })
		}
	}
}

// removeTarget ends a target's sessions and closes its disks.
func (d *daemon) removeTarget(ctx context.Context, name string, r *report) error {
	t := d.targets[name]
	d.locked(func() { delete(d.targets, name) })
	r.changef("target %s removed", name)
	if err := d.server.RemoveTarget(ctx, name); err != nil {
		d.locked(func() { d.zombies = slices.AppendSeq(d.zombies, maps.Values(t.disks)) }) // commands may still run in their stores
		return err
	}
	return t.close()
}

func (t *served) close() error {
	var errs []error
	for _, k := range t.disks {
		errs = append(errs, k.close())
	}
	return errors.Join(errs...)
}

// removeLUN takes a disk away. If its commands do not end in time the disk stays open until they do, and the error says so.
func (d *daemon) removeLUN(ctx context.Context, at lunAt, r *report) error {
	t := d.targets[at.target]
	k := t.disks[at.lun]
	var lu *scsi.LU
	lu, err := t.device.Remove(at.lun)
	if err != nil {
		return err
	}
	d.locked(func() { delete(t.disks, at.lun) })
	r.changef("%v removed", at)
	if err := d.server.ReleaseLU(ctx, at.target, lu); err != nil {
		d.locked(func() { d.zombies = append(d.zombies, k) })
		return fmt.Errorf("%v: %w; its store stays open until iserd ends", at, err)
	}
	return k.close()
}
