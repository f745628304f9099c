package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/iserd/internal/config"
	"goiwarp/iscsi/scsi"
)

type (
	// aluaReply is the asymmetric access state of a portal group for a logical unit (SPC-4, section 5.15). An initiator may have
	// changed it for one logical unit alone, by SET TARGET PORT GROUPS.
	aluaReply struct {
		Target string `json:"target"`
		Group  int    `json:"group"`
		LUN    int    `json:"lun"`
		State  string `json:"state"`
	}
	// aluaArgs give a group a state.
	aluaArgs struct {
		Target string `json:"target,omitempty"` // may be left out if there is one
		Group  int    `json:"group"`
		State  string `json:"state"`
	}
)

// groups are the target port groups of a target in rising order.
func (t *served) groups() []uint16 {
	var tags []uint16
	for _, p := range t.device.Ports() {
		if p.Group != 0 && !slices.Contains(tags, p.Group) {
			tags = append(tags, p.Group)
		}
	}
	slices.Sort(tags)
	return tags
}

func (d *daemon) aluaReplies() []aluaReply {
	d.mu.Lock()
	defer d.mu.Unlock()
	replies := []aluaReply{}
	for i := range d.cfg.Targets {
		name := d.cfg.Targets[i].Name
		t := d.targets[name]
		if t == nil {
			continue
		}
		for _, g := range t.groups() {
			for _, n := range t.device.LUNs() {
				if lu := t.device.LU(n); lu != nil {
					replies = append(replies, aluaReply{name, int(g), n, lu.AccessState(g).String()})
				}
			}
		}
	}
	return replies
}

// setState gives a portal group of a target a state for all of its logical units. The state becomes part of the configuration that 'iserd ctl
// save' writes, and is set even where that says so already: an initiator may have changed it since.
func (d *daemon) setState(ctx context.Context, a aluaArgs) (any, error) {
	state, err := scsi.ParseAccessState(a.State)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "scsi: "))
	}
	done, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	c := d.cfg.Clone()
	t, err := targetOf(c, a.Target)
	if err != nil {
		return nil, err
	}
	now := d.targets[t.Name]
	if now == nil {
		return nil, fmt.Errorf("no target %s", t.Name)
	}
	if !slices.Contains(now.groups(), uint16(a.Group)) || a.Group > 65535 {
		return nil, fmt.Errorf("target %s has no portal group %d (it has %s)", t.Name, a.Group, strings.Trim(fmt.Sprint(now.groups()), "[]"))
	}
	t.States = slices.DeleteFunc(t.States, func(s config.GroupState) bool { return s.Group == a.Group })
	if state != scsi.ActiveOptimized {
		t.States = append(t.States, config.GroupState{Group: a.Group, State: state})
	}
	if errs := c.Check(); len(errs) > 0 {
		return nil, errs
	}
	if err := now.device.SetAccessState(uint16(a.Group), state); err != nil {
		return nil, err
	}
	d.locked(func() { d.cfg = c })
	r := &report{}
	r.changef("target %s: portal group %d is %v", t.Name, a.Group, state)
	return r, nil
}

// commitStates gives portal groups the states that the configuration has changed. What an initiator has set stays where it has not.
func (p *plan) commitStates(before *config.Config, t *config.Target, r *report) error {
	now := p.d.targets[t.Name]
	if now == nil {
		return nil // it could not be added
	}
	was, next := make(map[uint16]scsi.AccessState), make(map[uint16]scsi.AccessState)
	for _, s := range t.States {
		next[uint16(s.Group)] = s.State
	}
	if b := before.Target(t.Name); b != nil {
		for _, s := range b.States {
			was[uint16(s.Group)] = s.State
		}
	}
	var errs []error
	for _, g := range now.groups() {
		if was[g] == next[g] {
			continue
		}
		errs = append(errs, now.device.SetAccessState(g, next[g]))
		r.changef("target %s: portal group %d is %v", t.Name, g, next[g])
	}
	return errors.Join(errs...)
}

// alua is 'iserd ctl alua'.
func (c *client) alua() *cobra.Command {
	cmd := &cobra.Command{
		Use: "alua", Short: "Show or change how well disks are reached through each portal group",
		Long: `alua shows the asymmetric access state (ALUA) of each portal group for the disks of each target. Initiators with several paths use those that
are active/optimized, then active/non-optimized ones; through a standby or unavailable group they get no data.`,
		Example: "  iserd ctl alua\n  iserd ctl alua set 2 standby", Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r []aluaReply
			if err := c.call(cmd.Context(), "alua", nil, &r); err != nil {
				return err
			}
			return c.show(r, func(w *tabwriter.Writer) { aluaTable(w, r) })
		},
	}
	var a aluaArgs
	set := &cobra.Command{
		Use: "set GROUP STATE", Short: "Give a portal group an access state, and tell initiators",
		Long: `set gives a portal group of a target a state for all its disks, those that come later included: active/optimized, active/non-optimized,
standby, unavailable or transitioning. Initiators are told; commands that run already go on to their end.`,
		Example: "  iserd ctl alua set 2 active/non-optimized\n  iserd ctl alua set 1 standby --target iqn.2026-11.com.example:store1",
		Args:    cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.ParseUint(args[0], 10, 16)
			if err != nil || n == 0 {
				return cli.Usagef("%q is no portal group: want 1 to 65535", args[0])
			}
			if _, err := scsi.ParseAccessState(args[1]); err != nil {
				return cli.Usagef("%s", strings.TrimPrefix(err.Error(), "scsi: "))
			}
			a.Group, a.State = int(n), args[1]
			return c.change(cmd.Context(), "alua.set", a)
		},
	}
	set.Flags().StringVar(&a.Target, "target", "", "the target's `name`; may be left out if there is one")
	cmd.AddCommand(set)
	return cmd
}

// aluaTable has a line for each state of a group, with the LUNs that it holds for.
func aluaTable(w *tabwriter.Writer, all []aluaReply) {
	type key struct {
		target string
		group  int
		state  string
	}
	var order []key
	luns := make(map[key][]string)
	for _, r := range all {
		k := key{r.Target, r.Group, r.State}
		if luns[k] == nil {
			order = append(order, k)
		}
		luns[k] = append(luns[k], strconv.Itoa(r.LUN))
	}
	_, _ = fmt.Fprintln(w, "TARGET\tGROUP\tSTATE\tLUNS")
	for _, k := range order {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", k.target, k.group, k.state, strings.Join(luns[k], ","))
	}
}
