package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"goiwarp/cmd/internal/cli"
	"goiwarp/cmd/iser/internal/blockdev"
	"goiwarp/cmd/iser/internal/nbd"
)

// attaching is one run of attach.
type attaching struct {
	o      *attachOptions
	driver blockdev.Driver
	disk   *resident
	server *nbd.Server
	device blockdev.Device // what was there already, to be adopted
	adopt  bool
}

func (o *attachOptions) run(cmd *cobra.Command, c *connectOptions, args []string) (err error) {
	u, err := parseDisk(args[0])
	if err != nil {
		return err
	}
	index := blockdev.Any
	if len(args) == 2 {
		if index, err = blockdev.Index(args[1]); err != nil {
			return err
		}
	}
	driver, err := blockdev.Open()
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return blockdev.ErrNotAllowed
	}
	log, err := cli.Logger(os.Stderr, c.logLevel)
	if err != nil {
		return err
	}
	if o.guard {
		if err := blockdev.Guard(log); err != nil {
			return err
		}
	}
	lock, err := blockdev.Lock() // until the device is there: two that attach the same disk take turns
	if err != nil {
		return err
	}
	defer lock.Close()
	a := &attaching{o: o, driver: driver}
	if a.adopt, err = a.look(u.String(), index); err != nil {
		return err
	}
	if a.adopt {
		index = a.device.Index
		o.connections = max(a.device.Connections, 1)
	}
	const small = 128 * (16 << 10) // beside --memory
	a.disk, err = c.openResident(cmd.Context(), args[0], &o.residentOptions, o.connections*(int(o.memory.N)+small), sessionID(u.String()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.disk.Close()) }()
	if err := a.suits(); err != nil {
		return err
	}
	a.server, err = nbd.New(a.disk.disk, a.disk.export, nbd.Config{Memory: int(o.memory.N), Prepare: o.connections, Poller: a.disk.fabric.poller, Log: log})
	if err != nil {
		return err
	}
	defer a.server.Close()
	if o.guard {
		if err := blockdev.LockMemory(); err != nil {
			log.Warn("memory may be paged out", "error", err)
		}
	}
	return a.attach(cmd, index, lock)
}

// sessionID is the ISID of an attachment's sessions, the same each time, so that the login of a restarted tool ends the commands that a killed one
// has left at the target (session reinstatement) before the kernel sends them again. It is of RFC 7143's random kind.
func sessionID(url string) [6]byte {
	sum := sha256.Sum256([]byte("iser attach " + url))
	return [6]byte{0x80, sum[0], sum[1], sum[2], sum[3], 0}
}

// look finds out whether the disk is attached already, so that its device is only to be served again.
func (a *attaching) look(url string, index int) (bool, error) {
	list, err := blockdev.Attached()
	if err != nil {
		return false, err
	}
	d, ok, err := blockdev.Find(list, url)
	switch {
	case err != nil || !ok:
		return false, err
	case d.Served:
		return false, fmt.Errorf("%s is attached already, as %s, and served by process %d", url, d.Path, d.PID)
	case index != blockdev.Any && index != d.Index:
		return false, fmt.Errorf("%s is attached already, as %s, and waits to be served: leave the device out, or 'iser detach %s' first", url, d.Path, d.Path)
	case d.URL != url:
		return false, fmt.Errorf("%s waits as %s to be served by its own URL: %s", url, d.Path, d.URL)
	}
	a.device = d
	return true, nil
}

// suits checks the disk against what was asked for, and what the device is already.
func (a *attaching) suits() error {
	x := &a.disk.export
	switch {
	case a.o.blockSize != 0 && a.o.blockSize != x.BlockSize:
		return fmt.Errorf("--block-size %d: the disk has blocks of %d octets", a.o.blockSize, x.BlockSize)
	case x.BlockSize < 512 || x.BlockSize > 4096:
		return fmt.Errorf("the disk has blocks of %d octets, and the kernel takes 512 to 4096", x.BlockSize)
	case x.Size == 0:
		return errors.New("the disk has no blocks")
	case a.adopt && x.BlockSize != a.device.BlockSize:
		return fmt.Errorf("the disk has blocks of %d octets, and %s had %d: 'iser detach %s' first", x.BlockSize, a.device.Path, a.device.BlockSize, a.device.Path)
	case a.adopt && x.Size < a.device.Size:
		return fmt.Errorf("the disk has %d octets, and %s had %d: 'iser detach %s' first", x.Size, a.device.Path, a.device.Size, a.device.Path)
	}
	return nil
}

// attach sets the device up and serves it.
func (a *attaching) attach(cmd *cobra.Command, index int, lock *os.File) (err error) {
	o, x, log := a.o, &a.disk.export, a.disk.fabric.log
	set := blockdev.Settings{
		Index: index, Size: x.Size, BlockSize: x.BlockSize, Flags: x.Flags(), Identifier: a.disk.url.String(),
		Timeout: o.ioTimeout, DeadTimeout: o.deadTimeout,
	}
	var at *blockdev.Attachment
	if a.adopt {
		at = blockdev.Adopt(a.driver, a.server, set, o.connections, log)
	} else if at, err = blockdev.Attach(a.driver, a.server, set, o.connections, log); err != nil {
		return err
	}
	path := blockdev.Path(at.Index())
	record, err := blockdev.Write(blockdev.Device{
		Index: at.Index(), Path: path, URL: set.Identifier, Size: x.Size, BlockSize: x.BlockSize, Connections: o.connections,
		PID: os.Getpid(), Served: true, Since: time.Now().Truncate(time.Second),
	})
	if err != nil {
		if !a.adopt {
			err = errors.Join(err, a.driver.Disconnect(at.Index()))
		}
		return err
	}
	serving, leave := context.WithCancel(context.Background())
	defer leave()
	over := make(chan error, 1)
	go func() { over <- at.Run(serving) }()
	_ = lock.Close()

	if a.adopt && x.Size > a.device.Size {
		if err := at.Resize(x.Size); err != nil {
			log.Warn("the device keeps its size", "device", path, "error", err)
		}
	}
	watch, stop := context.WithCancel(cmd.Context())
	var wg sync.WaitGroup
	wg.Go(func() { a.disk.watchSize(watch, o.sizeCheck, func(n int64) { a.resized(at, n) }) })
	fmt.Fprintf(cmd.OutOrStdout(), "ready: %s on %s\n", a.disk.url, path)
	_, _ = systemd.SdNotify(false, systemd.SdNotifyReady+"\nSTATUS="+a.disk.url.String()+" on "+path)

	select {
	case err = <-over:
	case <-cmd.Context().Done():
		_, _ = systemd.SdNotify(false, systemd.SdNotifyStopping)
		err = a.end(at, over, leave)
	}
	stop()
	wg.Wait()
	if errors.Is(err, blockdev.ErrDetached) {
		return record.Remove()
	}
	return errors.Join(err, record.Close())
}

// resized takes over another size of the disk. A smaller one is not: a file system may lie on what is gone, and has to be told by its requests'
// failure.
func (a *attaching) resized(at *blockdev.Attachment, size int64) {
	log := a.disk.fabric.log
	if size < a.server.Size() {
		log.Warn("the disk has shrunk, and the device has not: detach and attach it", "octets", size, "device", a.server.Size())
		return
	}
	err := a.server.Resize(size)
	if err == nil {
		err = at.Resize(size)
	}
	if err != nil {
		log.Warn("the device keeps its size", "error", err)
		return
	}
	log.Info("the device has grown with the disk", "octets", size)
}

// end is what happens when the tool is told to stop. It is blockdev.ErrDetached when the device is gone.
func (a *attaching) end(at *blockdev.Attachment, over <-chan error, leave func()) error {
	var kept error
	if !a.o.persist {
		ctx, cancel := context.WithTimeout(context.Background(), drainPatience/2)
		kept = blockdev.Detach(ctx, a.driver, at.Index(), false)
		cancel()
		if kept == nil {
			return <-over
		}
		kept = fmt.Errorf("%w; it stays attached and waits: 'iser attach %s' serves it again, 'iser detach' ends it", kept, a.disk.url)
	}
	// What is under way is answered; what is not in time is left to the kernel, which sends it again to whoever serves the device next. It must
	// not fail.
	t := time.AfterFunc(drainPatience/2, func() {
		a.server.Abandon()
		_ = a.disk.disk.Close()
	})
	defer t.Stop()
	leave()
	if err := <-over; errors.Is(err, blockdev.ErrDetached) {
		return err
	}
	return kept
}

// detach takes a device away.
func detach(ctx context.Context, name string, force bool, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	driver, err := blockdev.Open()
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return blockdev.ErrNotAllowed
	}
	list, err := blockdev.Attached()
	if err != nil {
		return err
	}
	d, ok, err := blockdev.Find(list, name)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("%s is not attached by 'iser attach'; 'iser attached' lists what is", name)
	}
	err = blockdev.Detach(ctx, driver, d.Index, force)
	if busy := new(blockdev.BusyError); errors.As(err, &busy) {
		return fmt.Errorf("%w: unmount or release it first", err)
	}
	if errors.Is(err, context.DeadlineExceeded) && !force {
		return fmt.Errorf("%w; --force detaches it without what was not written", err)
	}
	if err != nil {
		return err
	}
	return blockdev.Released(ctx, d)
}

func attached() ([]blockdev.Device, error) { return blockdev.Attached() }
