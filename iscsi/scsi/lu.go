package scsi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"goiwarp/iscsi/store"
)

// Provisioning says whether initiators may unmap blocks.
type Provisioning int

const (
	// ProvisionAuto is thin if the store can discard, else full.
	ProvisionAuto Provisioning = iota
	// ProvisionFull offers no unmapping.
	ProvisionFull
	// ProvisionThin offers UNMAP and WRITE SAME with UNMAP; the store must be able to discard.
	ProvisionThin
)

// LUConfig configures a logical unit. The zero value is a disk of 512 octet blocks with the write
// cache on if the store has one.
type LUConfig struct {
	// BlockSize is the logical block's size in octets, 512 or 4096; 0 is 512.
	BlockSize int
	// PhysicalExponent is the power of two of logical blocks in a physical one, at most 7 (READ
	// CAPACITY(16)).
	PhysicalExponent int
	// Vendor (8 characters), Product (16) and Revision (4) are for INQUIRY; empty for defaults.
	Vendor, Product, Revision string
	// Identity is what Serial and NAA are derived from where those are empty. It must be stable
	// over restarts and unique to the logical unit: the target's name with the LUN, for one. Empty
	// is the store's name.
	Identity string
	// Serial is the unit serial number, at most 36 printable ASCII characters.
	Serial string
	// NAA is a designator of 8 or 16 octets whose first four bits are its kind (SPC-4, section
	// 7.8.6.6). If it is nil, a locally assigned one (3h) of 8 octets is derived.
	NAA []byte
	// WriteThrough turns the write cache off: a write is durable before it is answered. An
	// initiator can change it by MODE SELECT until the next reset.
	WriteThrough bool
	// ReadOnly refuses writes. A store that is read-only does so, too.
	ReadOnly     bool
	Provisioning Provisioning
	// Rotational reports a rotating medium; a store that says it is one does so, too.
	Rotational bool
	// RotationRate is the rotating medium's revolutions per minute, 1025 to 65534; 0 is not told.
	RotationRate int
	// Removable makes the medium one that initiators can eject and load.
	Removable bool
	// IOPS and Bandwidth bound the commands and octets per second that touch the medium; 0 is no bound. LU.Limiter changes them.
	IOPS, Bandwidth int64
	// SpaceThreshold is how many octets that a thin logical unit could still take are so few that the operator and initiators are told (THIN PROVISIONING
	// SOFT THRESHOLD REACHED); 0 is none. The store must know its space, as files on Linux do.
	SpaceThreshold int64
	// MaxTransfer is the most octets that one READ, WRITE, WRITE SAME or VERIFY may move or change,
	// at most 1 GiB; 0 is 32 MiB.
	MaxTransfer int
	// Reservations keeps persistent reservations over a restart; nil: they end with the process, and
	// initiators are told so (PTPL_C of REPORT CAPABILITIES).
	Reservations ReservationStore
	// Sanitizing keeps what a SANITIZE does until it has succeeded: NewLU then goes on with one that a restart cut short, and refuses access after
	// one that failed. nil: it is forgotten with the process.
	Sanitizing StateStore
	// Log is told of what an operator should know (a failed flush, a size that is no multiple of
	// the block, errors of the store: the first of each kind, then at most one in 10 s); nil is
	// nothing.
	Log *slog.Logger
}

// ErrShrink is Resize's refusal to take blocks away.
var ErrShrink = errors.New("scsi: would shrink the logical unit")

// LU is one logical unit, a direct access block device over a store. All methods may be called by
// many goroutines at once.
type LU struct {
	store   store.Store
	cfg     LUConfig // completed
	info    store.Info
	log     *slog.Logger
	thin    bool
	anchors bool // blocks can be anchored
	ident   identity
	limits  limits
	locks   rangeLock
	faults  faultLog

	blocks  atomic.Uint64 // capacity
	told    atomic.Uint64 // capacity that nexuses were last told
	ignored atomic.Int64  // octets of the store after the last whole block
	wce     atomic.Bool   // write cache enabled
	dsense  atomic.Bool   // descriptor format sense (control mode page)
	tas     atomic.Bool   // task aborted status (control mode page)
	swp     atomic.Bool   // software write protect (control mode page)

	protected atomic.Bool // by SetReadOnly

	sanitizing    atomic.Pointer[sanitize] // one that runs or has failed
	sanitizeState sanitizeState
	copies        copyLog // what RECEIVE COPY RESULTS tells

	reservation atomic.Pointer[Nexus] // by RESERVE(6)
	persistent  reservations
	paths       atomic.Pointer[paths] // nil: every target port group is active/optimized
	ejected     atomic.Bool           // the medium is out
	limiter     Limiter
	space       space
	tallies     tallies

	flushMu sync.Mutex    // one flush at a time
	flushes atomic.Uint64 // begun so far; written under flushMu
	broken  atomic.Pointer[error]

	mu         sync.Mutex // guards what follows, and changes of paths and ejected
	attentions map[*Nexus]*attention
	preventing map[*Nexus]struct{} // who prevents removal
}

// NewLU makes a logical unit over s. The caller keeps s, and closes it after the last command and the logical unit's Close.
func NewLU(s store.Store, cfg LUConfig) (*LU, error) {
	l := &LU{store: s, info: s.Info(), log: cfg.Log, attentions: make(map[*Nexus]*attention)}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if err := cfg.complete(l.info); err != nil {
		return nil, err
	}
	l.cfg = cfg
	_, canDiscard := s.(store.Discarder)
	canDiscard = canDiscard && l.info.DiscardGranularity > 0
	switch cfg.Provisioning {
	case ProvisionThin:
		if !canDiscard {
			return nil, fmt.Errorf("scsi: %s: thin provisioning needs a store that can discard", l.info.Name)
		}
		l.thin = true
	case ProvisionAuto:
		l.thin = canDiscard
	}
	_, canAnchor := s.(store.Anchorer)
	l.anchors = l.thin && canAnchor && l.info.Anchors
	l.wce.Store(!cfg.WriteThrough)
	if err := l.limiter.Set(cfg.IOPS, cfg.Bandwidth); err != nil {
		return nil, err
	}
	l.limits = newLimits(&cfg, l.info, l.thin)
	l.setCapacity(s.Size())
	l.told.Store(l.blocks.Load())
	if l.blocks.Load() == 0 {
		return nil, fmt.Errorf("scsi: %s: %d octets hold no block of %d", l.info.Name, s.Size(), cfg.BlockSize)
	}
	l.ident = newIdentity(&cfg)
	if err := l.findSpace(); err != nil {
		return nil, err
	}
	if err := l.persistent.load(cfg.Reservations); err != nil {
		return nil, fmt.Errorf("scsi: %s: %w", l.info.Name, err)
	}
	if err := l.resumeSanitize(); err != nil {
		return nil, fmt.Errorf("scsi: %s: %w", l.info.Name, err)
	}
	return l, nil
}

// complete checks the configuration and fills in the defaults.
func (c *LUConfig) complete(info store.Info) error {
	if c.BlockSize == 0 {
		c.BlockSize = 512
	}
	if c.BlockSize != 512 && c.BlockSize != 4096 {
		return fmt.Errorf("scsi: block size %d is neither 512 nor 4096", c.BlockSize)
	}
	if info.Align > c.BlockSize && info.Align%c.BlockSize == 0 && info.Kind == "block" {
		return fmt.Errorf("scsi: %s: block size %d is below the device's %d", info.Name, c.BlockSize, info.Align)
	}
	if c.PhysicalExponent < 0 || c.PhysicalExponent > 7 {
		return fmt.Errorf("scsi: physical block exponent %d is not within 0 to 7", c.PhysicalExponent)
	}
	if c.Vendor == "" {
		c.Vendor = "GOIWARP"
	}
	if c.Product == "" {
		c.Product = "Virtual Disk"
	}
	if c.Revision == "" {
		c.Revision = "1"
	}
	if c.Identity == "" {
		c.Identity = info.Kind + ":" + info.Name
	}
	for _, f := range []struct {
		name, value string
		max         int
	}{
		{"vendor", c.Vendor, 8},
		{"product", c.Product, 16},
		{"revision", c.Revision, 4},
		{"serial number", c.Serial, 36},
	} {
		if err := printable(f.name, f.value, f.max); err != nil {
			return err
		}
	}
	if n := len(c.NAA); n != 0 && n != 8 && n != 16 {
		return fmt.Errorf("scsi: NAA designator of %d octets, must be 8 or 16", n)
	}
	if len(c.NAA) != 0 {
		if long := len(c.NAA) == 16; long != (c.NAA[0]>>4 == 6) {
			return fmt.Errorf("scsi: NAA %xh does not have %d octets", c.NAA[0]>>4, len(c.NAA))
		}
	}
	if c.MaxTransfer == 0 {
		c.MaxTransfer = 32 << 20
	}
	if c.MaxTransfer < c.BlockSize || c.MaxTransfer%c.BlockSize != 0 {
		return fmt.Errorf("scsi: maximum transfer of %d octets is no multiple of the block size %d", c.MaxTransfer, c.BlockSize)
	}
	if c.MaxTransfer > 1<<30 {
		return fmt.Errorf("scsi: maximum transfer of %d octets is above 1 GiB", c.MaxTransfer)
	}
	c.ReadOnly = c.ReadOnly || info.ReadOnly
	c.Rotational = c.Rotational || info.Rotational || c.RotationRate != 0
	if c.RotationRate != 0 && (c.RotationRate <= 0x400 || c.RotationRate >= 0xffff) {
		return fmt.Errorf("scsi: %d revolutions per minute are not within 1025 to 65534", c.RotationRate)
	}
	return nil
}

func printable(name, s string, most int) error {
	if len(s) > most {
		return fmt.Errorf("scsi: %s %q is longer than %d characters", name, s, most)
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return fmt.Errorf("scsi: %s %q is not printable ASCII", name, s)
		}
	}
	return nil
}

// setCapacity takes over the store's size.
func (l *LU) setCapacity(size int64) {
	bs := int64(l.cfg.BlockSize)
	l.blocks.Store(uint64(size / bs))
	tail := size % bs
	l.ignored.Store(tail)
	if tail != 0 {
		l.log.Warn("size is no multiple of the block size; the tail is ignored",
			"store", l.info.Name, "size", size, "block", bs, "ignored", tail)
	}
}

// Store is the backing store.
func (l *LU) Store() store.Store { return l.store }

// BlockSize is the logical block's size in octets.
func (l *LU) BlockSize() int { return l.cfg.BlockSize }

// Capacity is the number of logical blocks.
func (l *LU) Capacity() uint64 { return l.blocks.Load() }

// Ignored is the number of octets at the store's end that are less than a block and cannot be
// reached.
func (l *LU) Ignored() int64 { return l.ignored.Load() }

// Blocks tells that commands may wait for the store.
func (l *LU) Blocks() bool { return l.info.Blocks }

// Thin tells that blocks can be unmapped.
func (l *LU) Thin() bool { return l.thin }

// WriteCache tells whether the write cache is on now.
func (l *LU) WriteCache() bool { return l.wce.Load() }

// TaskAbortedStatus tells whether commands that another nexus aborts end with TASK ABORTED (the TAS bit of the control mode
// page), or without any status.
func (l *LU) TaskAbortedStatus() bool { return l.tas.Load() }

// Serial is the unit serial number.
func (l *LU) Serial() string { return l.ident.serial }

// NAA is the NAA designator.
func (l *LU) NAA() []byte { return l.ident.naa }

// ReadOnly tells that writes are refused: by configuration, by SetReadOnly, since a flush failed, or because
// an initiator asked for it (SWP in the control mode page).
func (l *LU) ReadOnly() bool { return l.readOnly() || l.swp.Load() }

func (l *LU) readOnly() bool { return l.cfg.ReadOnly || l.protected.Load() || l.broken.Load() != nil }

// Resize changes the store's size, in octets, and tells every nexus (CAPACITY DATA HAS CHANGED).
// Taking blocks away is ErrShrink unless force is set.
func (l *LU) Resize(size int64, force bool) error {
	r, ok := l.store.(store.Resizer)
	if !ok {
		return fmt.Errorf("scsi: %s: %w: the store's size is fixed", l.info.Name, errors.ErrUnsupported)
	}
	if blocks := size / int64(l.cfg.BlockSize); blocks < 1 || uint64(blocks) < l.blocks.Load() && !force {
		return fmt.Errorf("%w: %s from %d to %d blocks", ErrShrink, l.info.Name, l.blocks.Load(), blocks)
	}
	if uint64(size/int64(l.cfg.BlockSize)) < l.blocks.Load() {
		// Initiators may not reach what is about to go.
		l.setCapacity(size)
	}
	err := r.Resize(size)
	l.Refresh()
	return err
}

// Refresh looks at the store's size again, after it was changed from elsewhere, and tells every
// nexus if there are more or fewer blocks than before. It reports whether there are.
func (l *LU) Refresh() bool {
	size := l.store.Size()
	if size < int64(l.cfg.BlockSize) {
		// A logical unit without blocks cannot be told of; its commands fail.
		l.log.Warn("the store holds no block any more; the capacity stays as it was", "store", l.info.Name, "size", size)
		return false
	}
	l.setCapacity(size)
	now := l.blocks.Load()
	if l.told.Swap(now) == now {
		return false
	}
	l.log.Info("capacity changed", "store", l.info.Name, "blocks", now)
	l.Attention(CodeCapacityChanged, nil)
	return true
}

// Reset is the LOGICAL UNIT RESET that a nexus asked for: mode parameters go back to what was
// configured, SPC-2 reservations end, and every nexus is told (BUS DEVICE RESET FUNCTION OCCURRED), the
// one that asked, too (SAM-5, section 6.3.3); nil is the operator. The caller has aborted the tasks. It ends
// copies in the background, whose piece under way it waits for at last, and may wait for the store if an initiator had turned the write cache on.
func (l *LU) Reset(by *Nexus) { l.reset(by, CodeBusDeviceReset) }

func (l *LU) reset(by *Nexus, code Code) {
	l.reservation.Store(nil)
	l.dsense.Store(false)
	l.tas.Store(false)
	l.swp.Store(false)
	copies := l.copies.stop(func(r *copyResult) bool { return r.background })
	l.copies.clear()
	l.mu.Lock()
	clear(l.preventing)
	l.mu.Unlock()
	if l.cfg.WriteThrough && l.wce.Swap(false) {
		// What was answered while the cache was on must not stay behind in it. A failure makes the
		// unit read-only, which is all that a reset can say about it.
		_ = l.flush()
	} else if !l.cfg.WriteThrough {
		l.wce.Store(true)
	}
	attrs := []any{"lun", l.cfg.Identity, "code", code}
	if by != nil {
		attrs = append(attrs, "by", by.initiator)
	}
	l.log.Info("logical unit reset", attrs...)
	l.Attention(code, nil)
	_ = awaitCopies(context.Background(), copies) // that has no end
}

// Sync makes every write that was answered durable, as SYNCHRONIZE CACHE does; for a target that
// stops.
func (l *LU) Sync() error { return l.flush() }

// Plan says what a CDB asks this logical unit to move. It is cheap and allocates nothing.
func (l *LU) Plan(cdb []byte) Plan {
	c := find(cdb)
	if c == nil || c.when != nil && !c.when(l) {
		return Plan{}
	}
	p := Plan{Blocks: c.flags&medium != 0 && l.info.Blocks || c.flags&waits != 0}
	if c.flags&medium != 0 && c.rule.medium && l.limiter.Limits() {
		s := l.sanitizing.Load()
		p.Limited = s == nil || s.lets(c) // what will be refused waits for nothing
	}
	if c.plan != nil {
		p.DataIn, p.DataOut = c.plan(l, cdb)
	}
	return p
}

// Execute runs one command, as Device.Execute does for the logical unit of a LUN. A nil nexus has
// no unit attentions and holds no reservation.
func (l *LU) Execute(ctx context.Context, n *Nexus, cdb []byte, x Transfer) Result {
	return l.execute(ctx, nil, n, cdb, x)
}
