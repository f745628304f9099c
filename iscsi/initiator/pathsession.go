package initiator

// PathSession is the session of a path, or nil while it is down. It is for looking: facts, pings, what the path itself answers. Commands that
// are to outlive it go by the Disk.
func (d *Disk) PathSession(index int) *Session {
	d.mu.Lock()
	defer d.mu.Unlock()
	if index < 0 || index >= len(d.paths) || !d.paths[index].up {
		return nil
	}
	return d.paths[index].session
}
