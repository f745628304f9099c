package initiator

import (
	"context"
	"errors"
	"fmt"

	"goiwarp/iscsi/scsi"
)

// finding is what a look at a logical unit by one path tells.
type finding struct {
	id, serial  string
	product     string
	hasCapacity bool
	capacity    scsi.Capacity
	volatile    bool // write cache on

	alua, explicit, preferred bool
	access                    AccessState
	group                     uint16
}

// look asks a logical unit for all that a Disk has to know of it.
func look(ctx context.Context, l *LUN) (finding, error) {
	var f finding
	raw, err := l.fetch(ctx, scsi.Inquiry(255), 255)
	if err != nil {
		return f, err
	}
	inq, err := scsi.ParseInquiry(raw)
	if err != nil {
		return f, err
	}
	if inq.Qualifier != 0 {
		return f, fmt.Errorf("%w (peripheral qualifier %d)", ErrNoLogicalUnit, inq.Qualifier)
	}
	f.product = inq.Vendor + " " + inq.Product
	ids, err := l.Designators(ctx)
	if err != nil && !lacking(err) {
		return f, err
	}
	f.id = bestName(ids)
	if f.serial, err = l.Serial(ctx); err != nil && !lacking(err) {
		return f, err
	}
	if tpgs := raw[5] >> 4 & 3; tpgs != 0 {
		group, _, ok := nexusOf(ids)
		groups, err := l.PortGroups(ctx)
		if err != nil && !lacking(err) {
			return f, err
		}
		for _, g := range groups {
			if ok && g.ID == group {
				f.alua, f.explicit, f.access, f.group, f.preferred = true, tpgs&2 != 0, g.State, g.ID, g.Preferred
			}
		}
	}
	f.capacity, err = l.Capacity(ctx)
	switch {
	case err == nil:
		f.hasCapacity = true
		if f.volatile, err = l.WriteCache(ctx); err != nil {
			return f, err
		}
	case f.alua && !f.access.Usable(): // then it need not tell
	default:
		return f, err
	}
	return f, nil
}

// lacking tells that a logical unit does not have what it was asked for.
func lacking(err error) bool {
	var de *scsi.DataError
	return errors.Is(err, scsi.KeyIllegalRequest.Err()) || errors.As(err, &de)
}

// bestName is the logical unit's own name that is most surely the only one of its kind: NAA, EUI-64, SCSI name string, T10 vendor ID; "" if
// it has none.
func bestName(ids []scsi.Designator) string {
	for _, kind := range []byte{3, 2, 8, 1} {
		for _, d := range ids {
			if d.Association == 0 && d.Type == kind && len(d.Data) > 0 {
				return d.String()
			}
		}
	}
	return ""
}

// identity is what a logical unit has to stay.
type identity struct {
	known    bool
	id       string
	serial   string
	product  string
	capacity scsi.Capacity
}

// accept takes the first finding over, and holds later ones against it. One that has a name, or a serial number, may change its size; it is then
// another geometry of the same disk.
func (i *identity) accept(f finding) error {
	if !i.known {
		*i = identity{known: true, id: f.id, serial: f.serial, product: f.product, capacity: f.capacity}
		return nil
	}
	differ := func(what, have, was string) error { return &IdentityError{What: what, Have: have, Was: was} }
	switch {
	case f.id != i.id:
		return differ("its name", f.id, i.id)
	case f.serial != i.serial:
		return differ("its serial number", f.serial, i.serial)
	case f.product != i.product:
		return differ("the product", f.product, i.product)
	case !f.hasCapacity || i.capacity.BlockSize == 0:
	case f.capacity.BlockSize != i.capacity.BlockSize:
		return differ("the block size", fmt.Sprint(f.capacity.BlockSize), fmt.Sprint(i.capacity.BlockSize))
	case i.id == "" && i.serial == "" && f.capacity.Blocks != i.capacity.Blocks:
		return differ("without a name, the number of blocks", fmt.Sprint(f.capacity.Blocks), fmt.Sprint(i.capacity.Blocks))
	}
	return nil
}

// Name is the logical unit's own name, such as "naa.3…", or its serial number where it has none.
func (d *Disk) Name() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ident.id != "" {
		return d.ident.id
	}
	return d.ident.serial
}
