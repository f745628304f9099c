package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"goiwarp/cmd/internal/cli"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

// reservationTypes are the names that --type knows.
var reservationTypes = []struct {
	name string
	t    initiator.ReservationType
}{
	{"write-exclusive", initiator.WriteExclusive},
	{"exclusive-access", initiator.ExclusiveAccess},
	{"write-exclusive-registrants", initiator.WriteExclusiveRegistrantsOnly},
	{"exclusive-access-registrants", initiator.ExclusiveAccessRegistrantsOnly},
	{"write-exclusive-all", initiator.WriteExclusiveAllRegistrants},
	{"exclusive-access-all", initiator.ExclusiveAccessAllRegistrants},
}

func typeNames() []string {
	names := make([]string, len(reservationTypes))
	for i, t := range reservationTypes {
		names[i] = t.name
	}
	return names
}

// typeName is t as --type knows it.
func typeName(t initiator.ReservationType) string {
	for _, k := range reservationTypes {
		if k.t == t {
			return k.name
		}
	}
	return t.String()
}

// prOptions are the flags of pr.
type prOptions struct {
	key, newKey, victim reservationKey
	kind                string
	abort, ignore       bool
	persist, allPorts   bool
	json                bool
}

// reservationKey is a key of 8 octets, written in hexadecimal.
type reservationKey uint64

func (k *reservationKey) String() string {
	if *k == 0 {
		return ""
	}
	return fmt.Sprintf("%#x", uint64(*k))
}
func (k *reservationKey) Type() string { return "key" }

// Set reads a key.
func (k *reservationKey) Set(v string) error {
	n, err := strconv.ParseUint(strings.TrimPrefix(strings.ToLower(v), "0x"), 16, 64)
	if err != nil {
		return fmt.Errorf("%q is no key: want 1 to 16 hexadecimal digits", v)
	}
	*k = reservationKey(n)
	return nil
}

// prAction is one thing to do about reservations: which flags it needs, and which it may have beside them.
type prAction struct {
	name  string
	needs []string
	may   []string
	do    func(ctx context.Context, l *initiator.LUN, o *prOptions, t initiator.ReservationType) error
}

var prActions = []prAction{
	{"show", nil, []string{"json"}, nil},
	{"register", []string{"key"}, []string{"new-key", "ignore", "persist", "all-ports"}, prRegister},
	{"unregister", []string{"key"}, nil, func(ctx context.Context, l *initiator.LUN, o *prOptions, _ initiator.ReservationType) error {
		return l.Register(ctx, uint64(o.key), 0, initiator.RegisterOptions{})
	}},
	{"reserve", []string{"key", "type"}, nil, func(ctx context.Context, l *initiator.LUN, o *prOptions, t initiator.ReservationType) error {
		return l.Reserve(ctx, uint64(o.key), t)
	}},
	{"release", []string{"key", "type"}, nil, func(ctx context.Context, l *initiator.LUN, o *prOptions, t initiator.ReservationType) error {
		return l.Release(ctx, uint64(o.key), t)
	}},
	{"preempt", []string{"key", "victim", "type"}, []string{"abort"}, func(ctx context.Context, l *initiator.LUN, o *prOptions, t initiator.ReservationType) error {
		return l.Preempt(ctx, uint64(o.key), uint64(o.victim), t, o.abort)
	}},
	{"clear", []string{"key"}, nil, func(ctx context.Context, l *initiator.LUN, o *prOptions, _ initiator.ReservationType) error {
		return l.ClearReservations(ctx, uint64(o.key))
	}},
}

// prRegister registers --key; with --new-key that takes the place of --key.
func prRegister(ctx context.Context, l *initiator.LUN, o *prOptions, _ initiator.ReservationType) error {
	opts := initiator.RegisterOptions{Ignore: o.ignore, Persist: o.persist, AllPorts: o.allPorts}
	if o.newKey != 0 {
		return l.Register(ctx, uint64(o.key), uint64(o.newKey), opts)
	}
	return l.Register(ctx, 0, uint64(o.key), opts)
}

func prActionNames() []string {
	names := make([]string, len(prActions))
	for i, a := range prActions {
		names[i] = a.name
	}
	return names
}

// check finds the action and mistakes in its flags.
func (o *prOptions) check(name string, f *pflag.FlagSet) (a prAction, t initiator.ReservationType, err error) {
	i := slices.IndexFunc(prActions, func(a prAction) bool { return a.name == name })
	if i < 0 {
		return a, 0, cli.Usagef("pr knows no %q: want %s", name, strings.Join(prActionNames(), ", "))
	}
	a = prActions[i]
	for _, need := range a.needs {
		if !f.Changed(need) {
			return a, 0, cli.Usagef("pr %s needs --%s", name, strings.Join(a.needs, " and --"))
		}
	}
	for _, flag := range []string{"key", "new-key", "victim", "type", "abort", "ignore", "persist", "all-ports", "json"} {
		if f.Changed(flag) && !slices.Contains(a.needs, flag) && !slices.Contains(a.may, flag) {
			return a, 0, cli.Usagef("pr %s has no use for --%s", name, flag)
		}
	}
	if f.Changed("key") && o.key == 0 || f.Changed("new-key") && o.newKey == 0 {
		return a, 0, cli.Usagef("key 0 means that there is none: 'pr URL unregister' takes a registration away")
	}
	if o.kind == "" {
		return a, 0, nil
	}
	for _, k := range reservationTypes {
		if k.name == o.kind || strconv.Itoa(int(k.t)) == o.kind {
			return a, k.t, nil
		}
	}
	return a, 0, cli.Usagef("--type %s: want %s", o.kind, strings.Join(typeNames(), ", "))
}

func prCommand(c *connectOptions) *cobra.Command {
	o := new(prOptions)
	cmd := &cobra.Command{
		Use:   "pr URL ACTION",
		Short: "Show and change persistent reservations",
		Long: `pr works with the persistent reservations of a disk, by which several hosts agree on who may use it (SPC-4, section 5.13).

  show                                            who is registered, and who holds the disk
  register   --key K [--new-key N] [--ignore]     let this side have a key (or N in the place of K)
  unregister --key K                              take it away, and the reservation with it
  reserve    --key K --type T                     take the disk
  release    --key K --type T                     give it back
  preempt    --key K --victim V --type T          end V's registrations, and take the disk if V had it; with --abort its commands, too
  clear      --key K                              end all of it, other hosts' registrations as well

Keys are hexadecimal. --type is write-exclusive or exclusive-access, for the holder alone, with -registrants for all who are registered, with -all
where all of them hold it; a number does as well.

A registration belongs to this side's initiator name and session identifier (ISID). So that one 'iser pr' goes on where the last one ended, pr
derives its ISID from the name; --isid chooses another, and gives the same rights to other commands, such as 'iser write --isid ...'.`,
		Example: `  iser pr iser://192.0.2.10/iqn.2026-11.com.example:store1/0 show
  iser pr iser://192.0.2.10/iqn.2026-11.com.example:store1/0 register --key abc123
  iser pr iser://192.0.2.10/iqn.2026-11.com.example:store1/0 reserve --key abc123 --type write-exclusive-registrants
  iser pr iser://192.0.2.10/iqn.2026-11.com.example:store1/0 preempt --key abc123 --victim dead --type write-exclusive-registrants --abort`,
		Args: cli.Args(cobra.ExactArgs(2)),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return prActionNames(), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			a, t, err := o.check(args[1], cmd.Flags())
			if err != nil {
				return err
			}
			c.ownISID = true
			return c.withDisk(cmd.Context(), args[0], func(ctx context.Context, d *disk) error {
				if a.do == nil {
					return showReservations(ctx, cmd.OutOrStdout(), d, o.json)
				}
				err := a.do(ctx, d.lun, o, t)
				var e *scsi.Error
				if errors.As(err, &e) && e.Status == scsi.StatusReservationConflict {
					err = fmt.Errorf("%w: the key is not what this side has registered, or others hold the disk; 'iser pr %s show' tells", err, args[0])
				}
				if o.persist && errors.Is(err, scsi.CodeInvalidFieldInParameters.Err()) {
					err = fmt.Errorf("%w: the disk may have no place for what is to outlive a power loss; try without --persist", err)
				}
				return err
			})
		},
	}
	f := cmd.Flags()
	f.Var(&o.key, "key", "this side's key")
	f.Var(&o.newKey, "new-key", "key that takes the place of --key")
	f.Var(&o.victim, "victim", "key whose registrations are to end")
	f.StringVar(&o.kind, "type", "", "`kind` of reservation: "+strings.Join(typeNames(), ", "))
	f.BoolVar(&o.abort, "abort", false, "abort the victim's commands as well")
	f.BoolVar(&o.ignore, "ignore", false, "register whatever key this side has had")
	f.BoolVar(&o.persist, "persist", false, "keep it all over a power loss (APTPL)")
	f.BoolVar(&o.allPorts, "all-ports", false, "register with all target ports")
	f.BoolVar(&o.json, "json", false, "print JSON")
	_ = cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(typeNames(), cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	return cmd
}

// reservations is what show prints as JSON.
type reservations struct {
	Generation    uint32         `json:"generation"`
	Type          string         `json:"type,omitempty"` // "" if nobody holds the disk
	HolderKey     string         `json:"holder_key,omitempty"`
	Registrations []registration `json:"registrations"`
	Persist       bool           `json:"persist_through_power_loss"`
}

type registration struct {
	Key        string `json:"key"`
	Initiator  string `json:"initiator,omitempty"`
	TargetPort int    `json:"target_port,omitempty"` // 0: all of them, or not told
	Holder     bool   `json:"holder"`
}

func showReservations(ctx context.Context, out io.Writer, d *disk, asJSON bool) error {
	r, err := d.reservations(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(out, r)
	}
	t := newTable(out)
	t.row("generation", r.Generation)
	if r.Type == "" {
		t.row("reservation", "none")
	} else {
		t.row("reservation", fmt.Sprintf("%s, held by %s", r.Type, r.HolderKey))
	}
	t.yesNo("kept over a power loss", r.Persist)
	for _, g := range r.Registrations {
		who := g.Initiator
		if g.TargetPort != 0 {
			who += fmt.Sprintf(", target port %d", g.TargetPort)
		}
		if g.Holder {
			who += ", holder"
		}
		t.row("key "+g.Key, strings.TrimPrefix(who, ", "))
	}
	return t.Flush()
}

// reservations asks for all that there is to know; who has registered is not told by all disks.
func (d *disk) reservations(ctx context.Context) (*reservations, error) {
	keys, err := d.lun.ReservationKeys(ctx)
	if errors.Is(err, scsi.KeyIllegalRequest.Err()) {
		return nil, fmt.Errorf("%s knows no persistent reservations: %w", d, err)
	}
	if err != nil {
		return nil, err
	}
	held, err := d.lun.Reservation(ctx)
	if err != nil {
		return nil, err
	}
	r := &reservations{Generation: keys.Generation, Registrations: []registration{}}
	if held.Held {
		r.Type, r.HolderKey = typeName(held.Type), fmt.Sprintf("%#x", held.Key)
		if held.Key == 0 {
			r.HolderKey = "all"
		}
	}
	if c, err := d.lun.ReservationCapabilities(ctx); err == nil {
		r.Persist = c.PersistActive
	}
	full, err := d.lun.Registrations(ctx)
	if err != nil && !errors.Is(err, scsi.KeyIllegalRequest.Err()) {
		return nil, err
	}
	if err != nil {
		for _, k := range keys.Keys {
			r.Registrations = append(r.Registrations, registration{Key: fmt.Sprintf("%#x", k), Holder: held.Held && k == held.Key})
		}
	}
	for _, g := range full {
		one := registration{Key: fmt.Sprintf("%#x", g.Key), Initiator: g.Initiator, Holder: g.Holder}
		if !g.AllPorts {
			one.TargetPort = int(g.TargetPort)
		}
		r.Registrations = append(r.Registrations, one)
	}
	return r, nil
}
