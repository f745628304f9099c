package main

import (
	"github.com/spf13/pflag"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/internal/secret"
	"goiwarp/iscsi"
)

// chapOptions are the flags by which this side proves who it is, and asks the target to.
type chapOptions struct {
	user, file             string
	mutualUser, mutualFile string
	ask                    bool
}

func (o *chapOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.user, "chap-user", "", "`name` to log in as by CHAP")
	f.StringVar(&o.file, "chap-secret-file", "", "`file` with that user's secret: "+secret.Help)
	f.BoolVar(&o.ask, "chap-ask", false, "ask for the secret on the terminal instead")
	f.StringVar(&o.mutualUser, "mutual-user", "", "`name` that the target has to give (any, unless set)")
	f.StringVar(&o.mutualFile, "mutual-secret-file", "", "`file` with the secret that the target has to prove")
}

// load checks the flags and reads the files. Without --chap-user there is nothing to prove.
func (o *chapOptions) load() (c iscsi.CHAPInitiatorConfig, err error) {
	switch {
	case o.user == "" && (o.file != "" || o.ask || o.mutualUser != "" || o.mutualFile != ""):
		return c, cli.Usagef("--chap-secret-file, --chap-ask, --mutual-user and --mutual-secret-file need --chap-user")
	case o.user == "":
		return c, nil
	case (o.file != "") == o.ask:
		return c, cli.Usagef("--chap-user needs its secret: --chap-secret-file FILE or --chap-ask")
	case o.mutualUser != "" && o.mutualFile == "":
		return c, cli.Usagef("--mutual-user needs --mutual-secret-file")
	}
	c.User = o.user
	if o.ask {
		c.Secret, err = secret.Ask("secret of CHAP user " + o.user)
	} else {
		c.Secret, err = secret.File(o.file)
	}
	if err != nil {
		return c, err
	}
	c.Mutual.User = o.mutualUser
	if o.mutualFile != "" {
		if c.Mutual.Secret, err = secret.File(o.mutualFile); err != nil {
			return c, err
		}
	}
	return c, c.Check()
}
