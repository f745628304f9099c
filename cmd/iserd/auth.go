package main

import (
	"net"
	"net/netip"

	"github.com/spf13/pflag"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/internal/secret"
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

// load reads the files and makes the access lists for logins and for discovery; nil ones let everybody in.
func (o *authOptions) load() (login, discovery *target.Access, err error) {
	rule := target.AccessRule{Name: "flags", Initiators: o.initiators}
	for _, s := range o.networks {
		p, err := parseNetwork(s)
		if err != nil {
			return nil, nil, err
		}
		rule.Networks = append(rule.Networks, p)
	}
	var algorithms []iscsi.CHAPAlgorithm
	for _, s := range o.algorithms {
		a, err := iscsi.ParseCHAPAlgorithm(s)
		if err != nil {
			return nil, nil, cli.Usagef("--chap-algorithms: %v", err)
		}
		algorithms = append(algorithms, a)
	}
	who := rule
	if o.chapFile != "" {
		if rule.Users, err = secret.Users(o.chapFile); err != nil {
			return nil, nil, err
		}
	}
	if o.mutualFile != "" {
		if o.chapFile == "" && o.discoveryFile == "" {
			return nil, nil, cli.Usagef("--mutual-chap-file needs --chap-file: the target proves itself to users alone")
		}
		one, err := secret.Users(o.mutualFile)
		if err != nil {
			return nil, nil, err
		}
		if len(one) != 1 {
			return nil, nil, cli.Usagef("--mutual-chap-file %s: %d users; the target is one", o.mutualFile, len(one))
		}
		rule.Mutual = one[0]
	}
	who.Mutual = rule.Mutual
	if o.chapFile == "" {
		rule.Mutual = iscsi.Credentials{}
	}
	if o.chapFile != "" || len(o.initiators) > 0 || len(o.networks) > 0 {
		login = &target.Access{Rules: []target.AccessRule{rule}, Algorithms: algorithms}
		if err := login.Check(); err != nil {
			return nil, nil, err
		}
	}
	if o.discoveryFile != "" {
		who.Name = "discovery"
		if who.Users, err = secret.Users(o.discoveryFile); err != nil {
			return nil, nil, err
		}
		discovery = &target.Access{Rules: []target.AccessRule{who}, Algorithms: algorithms}
		if err := discovery.Check(); err != nil {
			return nil, nil, err
		}
	}
	return login, discovery, nil
}

// parseNetwork reads a network, or an address as a network of one.
func parseNetwork(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, cli.Usagef("--allow-network %q: want an address or a network, as 192.0.2.0/24 or 2001:db8::/32", s)
	}
	if p != p.Masked() {
		return p, cli.Usagef("--allow-network %s: bits are set behind the prefix; did you mean %s?", s, p.Masked())
	}
	return p, nil
}

// loopback says whether only this host can reach the listeners.
func loopback(addrs []string) bool {
	for _, a := range addrs {
		host, _, err := net.SplitHostPort(a)
		if err != nil {
			return false
		}
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}
