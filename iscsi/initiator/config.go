package initiator

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"

	"goiwarp/iscsi"
)

// Defaults of Config.
const (
	DefaultQueueDepth   = 128
	DefaultAbortTimeout = 10 * time.Second
	DefaultPingInterval = 5 * time.Second
	DefaultPingTimeout  = 10 * time.Second
)

// maxRedirects is how many times a login follows a target that has moved.
const maxRedirects = 4

// controlSlots is how many requests other than SCSI commands may be under way at once.
const controlSlots = 16

// Config is what a session needs. Only Addr and, but for Discover, TargetName have no default.
type Config struct {
	// Addr is the portal, "host:port".
	Addr string
	// TargetName is the target's iSCSI name.
	TargetName string
	// InitiatorName is this host's iSCSI name; "" means DefaultName().
	InitiatorName string
	// InitiatorAlias is for people.
	InitiatorAlias string
	// ISID tells this session from others of the same initiator: a login with the ISID of a living session replaces
	// that session. The zero value means a random one; to come back after a lost connection without leaving a dead session
	// behind, use the last session's again (Params().ISID).
	ISID [6]byte
	// Settings are what is offered. The zero value suits every target known: no unsolicited Data-Out PDUs, immediate
	// data, over RDMA control PDUs of up to 8192 octets (LIO takes no more).
	Settings iscsi.Settings
	// PortalGroup is the target portal group tag that discovery told; checked if CheckPortalGroup is set.
	PortalGroup      uint16
	CheckPortalGroup bool
	// CHAP is what this side proves itself with, and what it has the target prove; the zero value: nothing. With it the target has to
	// ask for authentication, unless AllowNone is set.
	CHAP iscsi.CHAPInitiatorConfig
	// Auth makes the authentication methods for one login, if CHAP is not set; nil means none. AllowNone lets the target do without.
	Auth      func() []iscsi.Authenticator
	AllowNone bool
	// QueueDepth is how many commands may be on their way at once, if the target's window allows; 0 means DefaultQueueDepth.
	QueueDepth int
	// CommandTimeout is how long a command that was sent may take. One that takes longer is aborted; if the target does not confirm that within
	// AbortTimeout the logical unit is reset, and if it does not confirm that either the session is dropped. The command then ends with a
	// *TimeoutError. 0 means for ever, but DefaultCommandTimeout for a Disk; below 0 for ever.
	CommandTimeout time.Duration
	// AbortTimeout is how long the target may take to answer a task management function: ABORT TASK, then LOGICAL UNIT RESET, before the session
	// is dropped; 0 means DefaultAbortTimeout.
	AbortTimeout time.Duration
	// PingInterval is how long the target may be silent, whether commands are under way or not, before it is asked for a sign of life with a
	// NOP-Out. Silence is looked for once per interval, so that it lasts up to twice as long. 0 means DefaultPingInterval; below 0, never ask:
	// a target that is stopped while its TCP connection stands then keeps its initiator waiting for ever.
	PingInterval time.Duration
	// PingTimeout is how long the target may then stay silent, while nothing moves to it either, before the session ends with
	// ErrDeadTarget. Any PDU or data counts as an answer. 0 means DefaultPingTimeout.
	PingTimeout time.Duration
	// Hooks watch the session.
	Hooks Hooks
	// Log is where the session tells of what is out of the ordinary; nil means nowhere.
	Log *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if c.InitiatorName == "" {
		c.InitiatorName = DefaultName()
	}
	var err error
	if c.InitiatorName, err = iscsi.NormalizeName(c.InitiatorName); err != nil {
		return c, err
	}
	if c.TargetName != "" {
		if c.TargetName, err = iscsi.NormalizeName(c.TargetName); err != nil {
			return c, err
		}
	}
	if len(c.InitiatorAlias) > iscsi.MaxValueLen || strings.ContainsRune(c.InitiatorAlias, 0) {
		return c, errors.New("initiator: alias longer than 255 octets, or with a zero octet")
	}
	if err := c.Settings.Check(); err != nil {
		return c, err
	}
	if !c.CHAP.Credentials.IsZero() || !c.CHAP.Mutual.IsZero() {
		if err := c.CHAP.Check(); err != nil {
			return c, err
		}
		if c.Log != nil && (c.CHAP.Secret.Weak() || c.CHAP.Mutual.Secret.Weak()) {
			c.Log.Warn("CHAP secret is shorter than 12 octets, which RFC 7143 asks for", "user", c.CHAP.User)
		}
		c.useCHAP()
	}
	if c.ISID == ([6]byte{}) {
		c.ISID = RandomISID()
	}
	if c.QueueDepth <= 0 {
		c.QueueDepth = DefaultQueueDepth
	}
	c.QueueDepth = min(c.QueueDepth, 1<<15)
	if c.AbortTimeout <= 0 {
		c.AbortTimeout = DefaultAbortTimeout
	}
	if c.PingInterval == 0 {
		c.PingInterval = DefaultPingInterval
	}
	if c.PingTimeout <= 0 {
		c.PingTimeout = DefaultPingTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// DefaultName is an iSCSI name made from the host's name.
func DefaultName() string {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	host = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		}
		return '-'
	}, strings.ToLower(host))
	if host == "" {
		host = "host"
	}
	return "iqn.2026-11.invalid.goiwarp:" + host[:min(len(host), 128)]
}

// RandomISID is an ISID of the random kind (RFC 7143, section 11.12.5), its qualifier random as well.
func RandomISID() [6]byte {
	var id [6]byte
	rand.Read(id[1:])
	id[0] = 0x80
	return id
}
