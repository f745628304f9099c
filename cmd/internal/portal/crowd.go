package portal

import (
	"container/list"
	"errors"
	"net"
	"sync"
)

// errCrowded ends a connection that a newer one took the place of.
var errCrowded = errors.New("said too little for too long while others waited")

// crowd are the connections that have not told yet what they are, oldest first. A client tells with its
// first segment; so when the crowd is full, its oldest member is the least likely one to be one.
type crowd struct {
	limit int

	mu    sync.Mutex // guards conns
	conns list.List  // of net.Conn
}

func newCrowd(limit int) *crowd { return &crowd{limit: limit} }

// enter adds conn; in a full crowd the oldest connection is closed for it.
func (c *crowd) enter(conn net.Conn) *list.Element {
	var oldest net.Conn
	c.mu.Lock()
	if c.conns.Len() >= c.limit {
		oldest = c.takeOldest()
	}
	e := c.conns.PushBack(conn)
	c.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close()
	}
	return e
}

// takeOldest removes the oldest connection; nil if there is none. mu is held.
func (c *crowd) takeOldest() net.Conn {
	e := c.conns.Front()
	if e == nil {
		return nil
	}
	return c.conns.Remove(e).(net.Conn)
}

// makeRoom closes the oldest connection, since a newcomer found no room outside of the crowd.
func (c *crowd) makeRoom() {
	c.mu.Lock()
	oldest := c.takeOldest()
	c.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close()
	}
}

// leave removes the connection of e, and says whether it was still there.
func (c *crowd) leave(e *list.Element) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for x := c.conns.Front(); x != nil; x = x.Next() {
		if x == e {
			c.conns.Remove(e)
			return true
		}
	}
	return false
}
