package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/iserd/internal/config"
	"goiwarp/cmd/iserd/internal/ctl"
	"goiwarp/iscsi"
)

// What the control socket tells and takes. Sizes are octets.
type (
	// statusReply is the answer to "status".
	statusReply struct {
		Version     string           `json:"version"`
		Since       time.Time        `json:"since"`
		Config      string           `json:"config,omitempty"`
		Targets     int              `json:"targets"`
		LUNs        int              `json:"luns"`
		Sessions    int              `json:"sessions"`
		Connections int              `json:"connections"`
		LoggingIn   int              `json:"logins_in_progress"`
		Changing    bool             `json:"changing"` // something is being changed at the moment
		Portals     []portalReply    `json:"portals"`
		Memory      map[string]int64 `json:"memory"`
	}
	portalReply struct {
		Address   string `json:"address"`
		Advertise string `json:"advertise,omitempty"`
		Group     int    `json:"group"`
		RDMA      bool   `json:"rdma"`
	}
	// sessionReply is one session.
	sessionReply struct {
		ID         uint16            `json:"id"` // TSIH
		Initiator  string            `json:"initiator"`
		Target     string            `json:"target,omitempty"`
		Discovery  bool              `json:"discovery,omitempty"`
		User       string            `json:"user,omitempty"`
		Transport  string            `json:"transport"`
		Remote     string            `json:"remote"`
		Local      string            `json:"local"`
		Since      time.Time         `json:"since"`
		InFlight   int               `json:"in_flight"`
		Ending     bool              `json:"ending,omitempty"`
		Commands   uint64            `json:"commands"`
		Failed     uint64            `json:"failed"`
		Aborted    uint64            `json:"aborted"`
		OctetsIn   uint64            `json:"octets_read"`
		OctetsOut  uint64            `json:"octets_written"`
		Rates      *rates            `json:"rates,omitempty"` // by 'iserd ctl sessions'
		Negotiated map[string]any    `json:"negotiated"`
		Facts      map[string]string `json:"facts,omitempty"`
	}
	// rates are per second.
	rates struct {
		Commands float64 `json:"commands"`
		Read     float64 `json:"octets_read"`
		Written  float64 `json:"octets_written"`
	}
	// targetReply is one target.
	targetReply struct {
		Name     string `json:"name"`
		Alias    string `json:"alias,omitempty"`
		LUNs     int    `json:"luns"`
		Sessions int    `json:"sessions"`
		Access   string `json:"access"`
		Draining bool   `json:"draining"`
	}
	// lunReply is one logical unit.
	lunReply struct {
		Target    string `json:"target"`
		LUN       int    `json:"lun"`
		Spec      string `json:"spec"`
		Kind      string `json:"kind"`
		Size      int64  `json:"size"`
		BlockSize int    `json:"block_size"`
		ReadOnly  bool   `json:"read_only"`
		Cache     bool   `json:"write_cache"`
		Thin      bool   `json:"thin"`
		Serial    string `json:"serial"`
		NAA       string `json:"naa"`
		IOPS      int64  `json:"iops,omitempty"`      // most commands per second
		Bandwidth int64  `json:"bandwidth,omitempty"` // most octets per second
	}
	// configReply is the answer to "config".
	configReply struct {
		File string `json:"file,omitempty"`
		Text string `json:"text"`
	}
	// lunArgs name a logical unit and what to do with it.
	lunArgs struct {
		Target string `json:"target,omitempty"` // may be left out if there is one
		LUN    *int   `json:"lun,omitempty"`    // lun.add: the next number
		Spec   string `json:"spec,omitempty"`
		Size   int64  `json:"size,omitempty"`
		Shrink bool   `json:"shrink,omitempty"`
		On     bool   `json:"on,omitempty"`
		// IOPS and Bandwidth are most commands and octets per second; 0 is no limit, nil leaves it as it is.
		IOPS      *int64 `json:"iops,omitempty"`
		Bandwidth *int64 `json:"bandwidth,omitempty"`
	}
	targetArgs struct {
		Target  string `json:"target,omitempty"`
		Alias   string `json:"alias,omitempty"`
		Timeout string `json:"timeout,omitempty"`
	}
	sessionArgs struct {
		ID uint16 `json:"id"`
	}
)

// control does one command of 'iserd ctl'.
func (d *daemon) control(ctx context.Context, command string, raw json.RawMessage) (any, error) {
	h, ok := verbs[command]
	if !ok {
		return nil, fmt.Errorf("%q: %w", command, ctl.ErrUnknownCommand)
	}
	v, err := h(d, ctx, raw)
	if err != nil {
		return nil, fmt.Errorf("%s", cli.OneLine(err))
	}
	return v, nil
}

// verbs are the commands. Changes are another configuration, applied as a reload is.
var verbs = map[string]func(d *daemon, ctx context.Context, raw json.RawMessage) (any, error){
	"status":        asking((*daemon).statusReply),
	"sessions":      asking((*daemon).sessionReplies),
	"targets":       asking((*daemon).targetReplies),
	"luns":          asking((*daemon).lunReplies),
	"config":        asking((*daemon).configReply),
	"reload":        doing(func(d *daemon, ctx context.Context, _ struct{}) (any, error) { return d.reload(ctx) }),
	"target.add":    doing((*daemon).addTarget),
	"target.remove": doing((*daemon).dropTarget),
	"lun.add":       doing((*daemon).addLUN),
	"lun.remove":    doing((*daemon).dropLUN),
	"lun.resize":    doing((*daemon).resizeLUN),
	"lun.read-only": doing((*daemon).protectLUN),
	"lun.limit":     doing((*daemon).limitLUN),
	"alua":          asking((*daemon).aluaReplies),
	"alua.set":      doing((*daemon).setState),
	"drain":         doing((*daemon).drain),
	"resume":        doing((*daemon).resume),
	"disconnect":    doing((*daemon).disconnect),
}

// quick are the verbs that wait for nobody: not for the turn to change something, and not for initiators.
var quick = map[string]bool{
	"status": true, "sessions": true, "targets": true, "luns": true, "config": true, "alua": true, "resume": true, "disconnect": true,
}

// long tells of a verb that it may take as long as initiators like.
func long(command string) bool { return !quick[command] }

// asking is a verb without arguments that changes nothing.
func asking[T any](f func(*daemon) T) func(*daemon, context.Context, json.RawMessage) (any, error) {
	return func(d *daemon, _ context.Context, raw json.RawMessage) (any, error) {
		if err := ctl.Args(raw, &struct{}{}); err != nil {
			return nil, err
		}
		return f(d), nil
	}
}

// doing is a verb with arguments.
func doing[A any](f func(*daemon, context.Context, A) (any, error)) func(*daemon, context.Context, json.RawMessage) (any, error) {
	return func(d *daemon, ctx context.Context, raw json.RawMessage) (any, error) {
		var a A
		if err := ctl.Args(raw, &a); err != nil {
			return nil, err
		}
		return f(d, ctx, a)
	}
}

func (d *daemon) statusReply() statusReply {
	m := d.server.Metrics()
	d.mu.Lock()
	defer d.mu.Unlock()
	r := statusReply{
		Version: cli.Version(), Since: d.began, Config: d.file, Targets: len(d.targets), Changing: len(d.turn) > 0,
		Sessions: m.Opened, Connections: m.Connections, LoggingIn: m.LoggingIn, Memory: d.memory(),
	}
	for _, t := range d.targets {
		r.LUNs += len(t.disks)
	}
	for _, k := range portalKeys(d.cfg.Portals) {
		for _, l := range d.portals[k] {
			r.Portals = append(r.Portals, portalReply{l.addr().String(), l.cfg.Advertise, max(l.cfg.Group, 1), l.rdma != nil})
		}
	}
	return r
}

func (d *daemon) sessionReplies() []sessionReply {
	replies := []sessionReply{}
	for _, s := range d.server.Status().Sessions {
		p := &s.Params
		r := sessionReply{
			ID: p.TSIH, Initiator: p.InitiatorName, Target: p.TargetName, Discovery: p.Discovery, User: s.User, Transport: s.Transport,
			Remote: s.Remote, Local: s.Local, Since: s.Since, InFlight: s.InFlight, Ending: s.Ending, Commands: s.Counters.Commands,
			Failed: s.Counters.Failed, Aborted: s.Counters.Aborted, OctetsIn: s.Counters.OctetsIn, OctetsOut: s.Counters.OctetsOut,
			Negotiated: negotiated(p), Facts: make(map[string]string),
		}
		for _, f := range s.Facts {
			r.Facts[f.Layer+": "+f.Name] = f.Value
		}
		replies = append(replies, r)
	}
	return replies
}

// negotiated are the operational values in force, by their keys' names (RFC 7143, section 13; RFC 7145, section 6).
func negotiated(p *iscsi.Params) map[string]any {
	m := map[string]any{
		"MaxRecvDataSegmentLength": p.MaxRecvDataSegment, "HeaderDigest": p.HeaderDigest, "DataDigest": p.DataDigest,
	}
	if p.Discovery {
		return m
	}
	m["InitialR2T"], m["ImmediateData"] = p.InitialR2T, p.ImmediateData
	m["MaxBurstLength"], m["FirstBurstLength"] = p.MaxBurstLength, p.FirstBurstLength
	m["MaxOutstandingR2T"], m["MaxConnections"] = p.MaxOutstandingR2T, p.MaxConnections
	m["ErrorRecoveryLevel"], m["RDMAExtensions"] = p.ErrorRecoveryLevel, p.RDMAExtensions
	m["DefaultTime2Wait"], m["DefaultTime2Retain"] = p.DefaultTime2Wait, p.DefaultTime2Retain
	if p.RDMAExtensions {
		m["TargetRecvDataSegmentLength"], m["InitiatorRecvDataSegmentLength"] = p.TargetRecvDataSegmentLength, p.InitiatorRecvDataSegmentLength
		m["MaxOutstandingUnexpectedPDUs"], m["iSERHelloRequired"] = p.MaxOutstandingUnexpectedPDUs, p.ISERHelloRequired
	}
	return m
}

func (d *daemon) targetReplies() []targetReply {
	sessions, draining := make(map[string]int), make(map[string]bool)
	for _, t := range d.server.Status().Targets {
		sessions[t.Name], draining[t.Name] = t.Sessions, t.Draining
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	replies := []targetReply{}
	for i := range d.cfg.Targets {
		t := &d.cfg.Targets[i]
		now := d.targets[t.Name]
		if now == nil {
			continue // on its way out
		}
		r := targetReply{t.Name, t.Alias, len(now.disks), sessions[t.Name], "everybody", draining[t.Name]}
		if n := len(t.Access.Rules); n > 0 {
			r.Access = plural(n, "rule")
		}
		replies = append(replies, r)
	}
	return replies
}

func (d *daemon) lunReplies() []lunReply {
	d.mu.Lock()
	defer d.mu.Unlock()
	replies := []lunReply{}
	for i := range d.cfg.Targets {
		name := d.cfg.Targets[i].Name
		now := d.targets[name]
		if now == nil {
			continue
		}
		for _, n := range slices.Sorted(maps.Keys(now.disks)) {
			k := now.disks[n]
			iops, bandwidth := k.lu.Limiter().Rates()
			replies = append(replies, lunReply{
				name, n, k.lun.Spec(), k.st.Info().Kind, int64(k.lu.Capacity()) * int64(k.lu.BlockSize()), k.lu.BlockSize(),
				k.lu.ReadOnly(), k.lu.WriteCache(), k.lu.Thin(), k.lu.Serial(), fmt.Sprintf("%x", k.lu.NAA()),
				iops, bandwidth,
			})
		}
	}
	return replies
}

// plural is a number of things.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// configReply is the configuration as it is in effect, for 'iserd ctl save'. The file is written by who asks, with that one's rights: the daemon
// may not be able to, and need not be.
func (d *daemon) configReply() configReply {
	d.mu.Lock()
	defer d.mu.Unlock()
	return configReply{d.file, string(d.cfg.Encode())}
}

// change applies what f does to a copy of the configuration.
func (d *daemon) change(ctx context.Context, force bool, f func(c *config.Config) error) (any, error) {
	done, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	c := d.cfg.Clone()
	if err := f(c); err != nil {
		return nil, err
	}
	if errs := c.Check(); len(errs) > 0 {
		return nil, errs
	}
	return d.applyInTurn(ctx, c, force)
}

// targetOf finds a target by its name; the only one if none is given.
func targetOf(c *config.Config, name string) (*config.Target, error) {
	if name == "" {
		if len(c.Targets) != 1 {
			return nil, fmt.Errorf("there are %d targets: name one", len(c.Targets))
		}
		return &c.Targets[0], nil
	}
	normal, err := iscsi.NormalizeName(name)
	if err != nil {
		return nil, err
	}
	if t := c.Target(normal); t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("no target %s", normal)
}

func (d *daemon) addTarget(ctx context.Context, a targetArgs) (any, error) {
	return d.change(ctx, false, func(c *config.Config) error {
		c.Targets = append(c.Targets, config.Target{Name: a.Target, Alias: a.Alias})
		return nil
	})
}

func (d *daemon) dropTarget(ctx context.Context, a targetArgs) (any, error) {
	return d.change(ctx, false, func(c *config.Config) error {
		t, err := targetOf(c, a.Target)
		if err != nil {
			return err
		}
		name := t.Name
		c.Targets = slices.DeleteFunc(c.Targets, func(t config.Target) bool { return t.Name == name })
		return nil
	})
}

func (d *daemon) addLUN(ctx context.Context, a lunArgs) (any, error) {
	return d.change(ctx, false, func(c *config.Config) error {
		t, err := targetOf(c, a.Target)
		if err != nil {
			return err
		}
		number := 0
		if a.LUN != nil {
			number = *a.LUN
		} else {
			for t.LUN(number) != nil {
				number++
			}
		}
		l, err := config.ParseLUN(a.Spec, number, config.Pos{})
		if err != nil {
			return err
		}
		t.LUNs = append(t.LUNs, l)
		slices.SortStableFunc(t.LUNs, func(a, b config.LUN) int { return a.Number - b.Number })
		return nil
	})
}

// changeLUN applies what f makes of a logical unit.
func (d *daemon) changeLUN(ctx context.Context, a lunArgs, f func(t *config.Target, l *config.LUN) error) (any, error) {
	return d.change(ctx, a.Shrink, func(c *config.Config) error {
		t, err := targetOf(c, a.Target)
		if err != nil {
			return err
		}
		if a.LUN == nil {
			return fmt.Errorf("which LUN?")
		}
		l := t.LUN(*a.LUN)
		if l == nil {
			return fmt.Errorf("target %s has no LUN %d", t.Name, *a.LUN)
		}
		return f(t, l)
	})
}

func (d *daemon) dropLUN(ctx context.Context, a lunArgs) (any, error) {
	return d.changeLUN(ctx, a, func(t *config.Target, l *config.LUN) error {
		number := l.Number
		t.LUNs = slices.DeleteFunc(t.LUNs, func(l config.LUN) bool { return l.Number == number })
		return nil
	})
}

func (d *daemon) resizeLUN(ctx context.Context, a lunArgs) (any, error) {
	return d.changeLUN(ctx, a, func(_ *config.Target, l *config.LUN) error {
		if a.Size <= 0 {
			return fmt.Errorf("size %d: want more than 0", a.Size)
		}
		*l = l.Resized(a.Size)
		return nil
	})
}

func (d *daemon) protectLUN(ctx context.Context, a lunArgs) (any, error) {
	return d.changeLUN(ctx, a, func(_ *config.Target, l *config.LUN) error {
		*l = l.With("ro", "", a.On)
		return nil
	})
}

// limitLUN changes how many commands and octets per second a logical unit takes.
func (d *daemon) limitLUN(ctx context.Context, a lunArgs) (any, error) {
	return d.changeLUN(ctx, a, func(_ *config.Target, l *config.LUN) error {
		if a.IOPS == nil && a.Bandwidth == nil {
			return fmt.Errorf("iops or bandwidth: which limit?")
		}
		for _, v := range []*int64{a.IOPS, a.Bandwidth} {
			if v != nil && *v < 0 {
				return fmt.Errorf("a limit of %d: want more than 0, or 0 for none", *v)
			}
		}
		*l = l.Limited(a.IOPS, a.Bandwidth)
		return nil
	})
}

// drain ends a target's sessions in order and refuses new ones until resume.
func (d *daemon) drain(ctx context.Context, a targetArgs) (any, error) {
	name, limit, err := d.named(a)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := d.server.Drain(ctx, name); err != nil {
		return nil, err
	}
	r := &report{}
	r.changef("target %s is drained: it takes no sessions until 'iserd ctl resume'", name)
	return r, nil
}

func (d *daemon) resume(_ context.Context, a targetArgs) (any, error) {
	name, _, err := d.named(a)
	if err != nil {
		return nil, err
	}
	r := &report{}
	r.changef("target %s takes sessions", name)
	return r, d.server.Resume(name)
}

// named finds the target and the time limit of a.
func (d *daemon) named(a targetArgs) (string, time.Duration, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t, err := targetOf(d.cfg, a.Target)
	if err != nil {
		return "", 0, err
	}
	limit := d.cfg.Timers.Drain
	if a.Timeout != "" {
		if limit, err = time.ParseDuration(a.Timeout); err != nil || limit <= 0 {
			return "", 0, fmt.Errorf("timeout %q: want a time such as 30s", a.Timeout)
		}
	}
	return t.Name, limit, nil
}

func (d *daemon) disconnect(_ context.Context, a sessionArgs) (any, error) {
	if !d.server.Disconnect(a.ID) {
		return nil, fmt.Errorf("no session %d", a.ID)
	}
	r := &report{}
	r.changef("session %d is asked to log out, and ended if it does not", a.ID)
	return r, nil
}
