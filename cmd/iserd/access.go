package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/internal/secret"
	"goiwarp/cmd/iserd/internal/config"
	"goiwarp/iscsi"
	"goiwarp/iscsi/target"
)

// authOptions are the flags that say who may use the target.
type authOptions struct {
	chapFile      string
	mutualFile    string
	discoveryFile string
	initiators    []string
	networks      []string
	algorithms    []string
}

func (o *authOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.chapFile, "chap-file", "", "`file` with the users who may log in by CHAP, a line \"USER SECRET\" for each: "+secret.Help)
	f.StringVar(&o.mutualFile, "mutual-chap-file", "", "`file` with one line \"USER SECRET\" that the target proves itself with when an initiator asks")
	f.StringVar(&o.discoveryFile, "discovery-chap-file", "", "`file` with the users who may ask for targets, as in --chap-file (anybody may, unless set)")
	f.StringArrayVar(&o.initiators, "allow-initiator", nil, "iSCSI `name` of an initiator that may log in, * and ? being wild cards; repeat for more (any, unless set)")
	f.StringArrayVar(&o.networks, "allow-network", nil, "`network`, as 192.0.2.0/24, or address that initiators may come from; repeat for more (any, unless set)")
	f.StringSliceVar(&o.algorithms, "chap-algorithms", nil, "CHAP `algorithms` taken: MD5, SHA1, SHA256, SHA3-256 (all, unless set)")
}

// fill checks the flags by themselves and adds the rules for discovery.
func (o *authOptions) fill(c *config.Config) error {
	for _, s := range o.networks {
		if _, err := config.ParseNetwork(s); err != nil {
			return cli.Usagef("--allow-network %v", err)
		}
	}
	for _, s := range o.algorithms {
		if _, err := iscsi.ParseCHAPAlgorithm(s); err != nil {
			return cli.Usagef("--chap-algorithms: %v", err)
		}
	}
	if o.mutualFile != "" && o.chapFile == "" && o.discoveryFile == "" {
		return cli.Usagef("--mutual-chap-file needs --chap-file: the target proves itself to users alone")
	}
	if o.discoveryFile != "" {
		c.Discovery.Algorithms = o.algorithms
		c.Discovery.Rules = append(c.Discovery.Rules, config.Rule{
			Name: "discovery", Initiators: o.initiators, Networks: o.networks, CHAP: o.discoveryFile, MutualCHAP: o.mutualFile,
			Pos: config.Pos{File: "--discovery-chap-file"},
		})
	}
	return nil
}

// rules adds the rule of the flags, if there is one.
func (o *authOptions) rules(a *config.Access) {
	if o.chapFile == "" && len(o.initiators) == 0 && len(o.networks) == 0 {
		return
	}
	r := config.Rule{Name: "flags", Initiators: o.initiators, Networks: o.networks, CHAP: o.chapFile}
	if o.chapFile != "" {
		r.MutualCHAP = o.mutualFile
	}
	a.Algorithms = o.algorithms
	a.Rules = append(a.Rules, r)
}

// accessList reads the secrets of an access list and makes what the target takes; nil lets everybody in.
func accessList(c *config.Access) (*target.Access, error) {
	if len(c.Rules) == 0 {
		return nil, nil
	}
	a := &target.Access{Hidden: c.Hidden}
	for _, name := range c.Algorithms {
		alg, err := iscsi.ParseCHAPAlgorithm(name)
		if err != nil {
			return nil, &config.Error{Pos: c.Pos, Text: err.Error()}
		}
		a.Algorithms = append(a.Algorithms, alg)
	}
	for i := range c.Rules {
		r, err := accessRule(&c.Rules[i])
		if err != nil {
			return nil, &config.Error{Pos: c.Rules[i].Pos, Text: err.Error()}
		}
		a.Rules = append(a.Rules, r)
	}
	if err := a.Check(); err != nil {
		return nil, &config.Error{Pos: c.Pos, Text: err.Error()}
	}
	return a, nil
}

func accessRule(c *config.Rule) (r target.AccessRule, err error) {
	r = target.AccessRule{Name: c.Name, Initiators: c.Initiators, ReadOnly: c.ReadOnly}
	for _, s := range c.Networks {
		p, err := config.ParseNetwork(s)
		if err != nil {
			return r, err
		}
		r.Networks = append(r.Networks, p)
	}
	if c.CHAP != "" {
		if r.Users, err = secret.Users(c.CHAP); err != nil {
			return r, err
		}
	}
	if c.MutualCHAP != "" {
		one, err := secret.Users(c.MutualCHAP)
		if err != nil {
			return r, err
		}
		if len(one) != 1 {
			return r, fmt.Errorf("%s: %d users; the target is one", c.MutualCHAP, len(one))
		}
		r.Mutual = one[0]
	}
	if c.LUNs != nil {
		r.LUNs = []target.LUNMapping{}
		for _, m := range c.LUNs {
			r.LUNs = append(r.LUNs, target.LUNMapping{LUN: m.As, Device: m.LUN, ReadOnly: m.ReadOnly})
		}
	}
	return r, nil
}

// credential is what the name of a secret begins with that systemd gives to the service.
const credential = "cred:"

// checkAccess reads the secrets of every access list, for the mistakes alone. Without systemd it cannot look into the credentials that it returns.
func checkAccess(c *config.Config) (unseen []string, err error) {
	var errs config.Errors
	lists := []*config.Access{&c.Discovery}
	for i := range c.Targets {
		lists = append(lists, &c.Targets[i].Access)
	}
	_, given := os.LookupEnv("CREDENTIALS_DIRECTORY")
	for _, a := range lists {
		looked := *a
		looked.Rules = slices.Clone(a.Rules)
		for i := range looked.Rules {
			for _, s := range []*string{&looked.Rules[i].CHAP, &looked.Rules[i].MutualCHAP} {
				if !given && strings.HasPrefix(*s, credential) {
					unseen = append(unseen, *s)
					*s = ""
				}
			}
		}
		_, err := accessList(&looked)
		var e *config.Error
		if errors.As(err, &e) {
			errs = append(errs, e)
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return unseen, nil
}

// open tells whether whoever can reach a listener that other hosts can reach may use a target.
func open(c *config.Config) bool {
	everybody := false
	for i := range c.Targets {
		everybody = everybody || len(c.Targets[i].Access.Rules) == 0
	}
	if !everybody {
		return false
	}
	for _, p := range c.Portals {
		if strings.HasPrefix(p.Listen, config.Systemd) {
			continue // whoever wrote the unit has chosen
		}
		host, _, err := net.SplitHostPort(p.Listen)
		if ip := net.ParseIP(host); err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return true
		}
	}
	return false
}
