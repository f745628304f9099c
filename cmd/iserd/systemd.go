package main

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	systemd "github.com/coreos/go-systemd/v22/daemon"

	"goiwarp/cmd/iserd/internal/config"
)

// notifier tells systemd how the daemon fares (sd_notify(3)); without systemd it does nothing.
type notifier struct{}

func (notifier) send(state string) { _, _ = systemd.SdNotify(false, state) }

// reloading begins a reload that READY=1 ends, as Type=notify-reload wants it: with the time.
func (n notifier) reloading() {
	n.send(systemd.SdNotifyReloading + "\n" + systemd.SdNotifyMonotonicUsec())
}

// watchdog is how often a sign of life is wanted; 0 for never.
func (notifier) watchdog() time.Duration {
	d, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		return 0
	}
	return d / 2
}

// sockets are those that systemd has opened for the daemon, by the name of their unit or their FileDescriptorName=.
type sockets struct{ byName map[string][]net.Listener }

// passedSockets takes over what systemd has passed.
func passedSockets() sockets {
	m, err := activation.ListenersWithNames()
	if err != nil {
		return sockets{}
	}
	return sockets{m}
}

func (s *sockets) any() bool { return len(s.byName) > 0 }

// take gives the sockets of a name, all that are left for "".
func (s *sockets) take(name string) ([]net.Listener, error) {
	var lns []net.Listener
	for _, n := range []string{name, name + ".socket"} {
		if name != "" {
			lns = append(lns, s.byName[n]...)
			delete(s.byName, n)
		}
	}
	if name == "" {
		var names []string
		for n := range s.byName {
			names = append(names, n)
		}
		slices.Sort(names)
		for _, n := range names {
			lns = append(lns, s.byName[n]...)
			delete(s.byName, n)
		}
	}
	lns = slices.DeleteFunc(lns, func(l net.Listener) bool { return l == nil })
	if len(lns) == 0 {
		return nil, fmt.Errorf("%s%s: systemd has passed no such socket", config.Systemd, name)
	}
	for _, l := range lns {
		if !strings.HasPrefix(l.Addr().Network(), "tcp") {
			return nil, fmt.Errorf("%s%s: %s is not a TCP socket", config.Systemd, name, l.Addr())
		}
	}
	return lns, nil
}

// close closes what nobody has taken.
func (s *sockets) close() {
	for _, lns := range s.byName {
		closeAll(lns...)
	}
}
