package iser

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"goiwarp/iscsi"
	"goiwarp/rnic"
)

// Defaults and bounds of DomainConfig.
const (
	DefaultRecvDataSegment = 8192
	DefaultMaxAHS          = 256
	DefaultReceiveMemory   = 256 << 20
	DefaultSharedReceives  = 256
	DefaultDomainMemory    = 256 << 20

	// loginDataSegment is what a PDU may carry before anything is negotiated (RFC 7143, section 6.3).
	loginDataSegment = 8192
)

// DomainConfig sizes what the connections of one device share. Zero values mean the defaults.
type DomainConfig struct {
	// RecvDataSegment is the largest data segment of a PDU that connections can receive, in octets: the upper
	// bound of what TargetRecvDataSegmentLength (or the initiator's key) may be negotiated to. At least, and by default, 8192.
	RecvDataSegment int
	// MaxAHS is how many octets of AHS a PDU may carry; default 256, as MaxAHSLength has it (RFC 7145, section 6.8).
	MaxAHS int
	// ReceiveMemory bounds the memory of all receives, in octets; default 256 MiB. A connection that
	// would need more than is left is refused when its login asks for resources.
	ReceiveMemory int
	// SharedReceives is how many receives are kept posted for all connections together, as long
	// as their windows sum up to that many; default 256. More are posted as soon as these run low. Without effect on a device
	// that has no shared receive queues: there each connection posts its own.
	SharedReceives int
	// BufferMemory bounds the memory of all data buffers, in octets; default 256 MiB.
	BufferMemory int
	// Log takes what happens to the domain and its connections, at debug level but for errors; nil is silent.
	Log *slog.Logger
}

func (c DomainConfig) withDefaults() (DomainConfig, error) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.RecvDataSegment, DefaultRecvDataSegment)
	def(&c.MaxAHS, DefaultMaxAHS)
	def(&c.ReceiveMemory, DefaultReceiveMemory)
	def(&c.SharedReceives, DefaultSharedReceives)
	def(&c.BufferMemory, DefaultDomainMemory)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.RecvDataSegment < loginDataSegment || c.RecvDataSegment > 1<<24-1:
		return c, fmt.Errorf("iser: RecvDataSegment %d is not within %d to %d", c.RecvDataSegment, loginDataSegment, 1<<24-1)
	case c.MaxAHS < 0 || c.MaxAHS > iscsi.MaxAHS:
		return c, fmt.Errorf("iser: MaxAHS %d is not within 0 to 1020", c.MaxAHS)
	case c.ReceiveMemory < 0 || c.SharedReceives < 0 || c.BufferMemory < 0:
		return c, errors.New("iser: negative size in DomainConfig")
	}
	c.MaxAHS = (c.MaxAHS + 3) &^ 3
	return c, nil
}

// Domain is what the iSER connections of one device share: the protection domain, the receives and the
// registered buffers. All methods may be called by many goroutines at once.
//
//	Domain ---- PD
//	  |-- receives: one shared queue (SRQ), or slots that each connection posts
//	  |-- buffers:  size classes, cut from regions outside the Go heap
//	  '-- Datamovers
type Domain struct {
	dev  rnic.Device
	pd   rnic.PD
	attr rnic.Attributes
	cfg  DomainConfig
	log  *slog.Logger

	receives receivePool
	buffers  bufferPool

	mu      sync.Mutex
	conns   map[*Datamover]struct{}
	users   int // connections, lent buffers, PDUs that were not released
	closing bool
	freeing bool
	freed   chan struct{} // closed once everything was given back to the device
	freeErr error
}

// NewDomain makes a domain of dev. The device stays the caller's, and has to outlive the domain.
func NewDomain(dev rnic.Device, cfg DomainConfig) (*Domain, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Domain{dev: dev, attr: dev.Attributes(), cfg: cfg, log: cfg.Log, conns: make(map[*Datamover]struct{}), freed: make(chan struct{})}
	if d.pd, err = dev.AllocPD(); err != nil {
		return nil, fmt.Errorf("iser: protection domain: %w", err)
	}
	d.buffers.init(d)
	if err = d.receives.init(d); err != nil {
		return nil, errors.Join(err, d.pd.Close())
	}
	return d, nil
}

// Device is the device that the domain belongs to.
func (d *Domain) Device() rnic.Device { return d.dev }

// DomainStats is a snapshot of what a domain has and what of it is in use.
type DomainStats struct {
	Connections    int
	BuffersLent    int // data buffers that Alloc lent and nobody released
	BufferOctets   int // memory of data buffers, in use or not
	ReceivesHeld   int // received PDUs that were not released
	ReceivesPosted int // in the shared queue
	ReceiveOctets  int // memory of receives
	CreditsGiven   int // receives that connections reserved
	SendsHeld      int // receive slots that hold an outgoing PDU
}

// Stats returns a snapshot.
func (d *Domain) Stats() DomainStats {
	var s DomainStats
	d.mu.Lock()
	s.Connections = len(d.conns)
	d.mu.Unlock()
	d.receives.stats(&s)
	d.buffers.stats(&s)
	return s
}

// Close ends the domain's connections and gives everything back to the device once the last buffer and
// the last PDU that are still lent have come back; it does not wait for those. It returns
// rnic.ErrBusy while there are any.
func (d *Domain) Close() error {
	d.mu.Lock()
	d.closing = true
	conns := make([]*Datamover, 0, len(d.conns))
	for c := range d.conns {
		conns = append(conns, c)
	}
	d.mu.Unlock()
	for _, c := range conns {
		c.ConnectionTerminate(false)
	}
	for _, c := range conns {
		<-c.Done()
	}
	d.mu.Lock()
	left := d.users
	d.mu.Unlock()
	d.maybeFree()
	if left > 0 {
		return fmt.Errorf("iser: domain has %d buffers and PDUs lent: %w", left, rnic.ErrBusy)
	}
	<-d.freed
	return d.freeErr
}

// enter counts a user; false when the domain is closing and the user is a connection.
func (d *Domain) enter(c *Datamover) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c != nil {
		if d.closing {
			return false
		}
		d.conns[c] = struct{}{}
	}
	d.users++
	return true
}

// leave takes a user off and frees the domain with the last one.
func (d *Domain) leave(c *Datamover) {
	d.mu.Lock()
	delete(d.conns, c)
	d.users--
	last := d.closing && d.users == 0
	d.mu.Unlock()
	if last {
		d.maybeFree()
	}
}

// maybeFree frees everything, once, if the domain is closing and nobody uses it.
func (d *Domain) maybeFree() {
	d.mu.Lock()
	if !d.closing || d.users > 0 || d.freeing {
		d.mu.Unlock()
		return
	}
	d.freeing = true
	d.mu.Unlock()
	d.freeErr = errors.Join(d.receives.close(), d.buffers.close(), d.pd.Close())
	close(d.freed)
}

// closeLater closes a domain that belongs to one connection, which has ended.
func (d *Domain) closeLater() {
	d.mu.Lock()
	d.closing = true
	d.mu.Unlock()
	d.maybeFree()
}
