package sock

// Guard is asked for the memory behind a write: Acquire right before each attempt, Release right after it,
// never while the write waits for the peer. It is for memory that somebody may withdraw: the buffers
// of a TryWrite or Write are touched between Acquire and Release only. If Acquire returns an error,
// Release is not called and the write returns that error.
type Guard interface {
	Acquire() error
	Release()
}

// Guarded is a Socket that asks a Guard. All Sockets of this package do.
type Guarded interface {
	// SetGuard sets the Guard of all later writes; nil is none. It belongs to the writing half.
	SetGuard(g Guard)
}

// guard is the Guard of a socket that embeds it.
type guard struct{ g Guard }

// SetGuard implements Guarded.
func (x *guard) SetGuard(g Guard) { x.g = g }

func (x *guard) acquire() error {
	if x.g == nil {
		return nil
	}
	return x.g.Acquire()
}

func (x *guard) release() {
	if x.g != nil {
		x.g.Release()
	}
}
