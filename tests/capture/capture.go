// Package capture reads the octets of TCP connections out of packet captures, for tests that decode
// what other implementations said to each other.
package capture

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// Conn is one TCP connection.
type Conn struct {
	Client, Server string // "address:port"; Client sent the SYN
	// FromClient and FromServer are the octets sent in either direction.
	FromClient, FromServer []byte
	// Turns are the same octets in the order of their packets.
	Turns []Turn
}

// Turn is a run of octets sent by one side.
type Turn struct {
	FromClient bool
	Data       []byte
}

// segment is a TCP segment's payload with its place in the stream.
type segment struct {
	seq  uint32
	data []byte
}

// flow is one direction of a connection while it is read.
type flow struct {
	next   uint32 // the sequence number expected next
	early  []segment
	stream []byte
}

// take appends what seg adds to the stream, and whatever waited for it.
func (f *flow) take(seg segment) (added []byte) {
	f.early = append(f.early, seg)
	slices.SortFunc(f.early, func(a, b segment) int { return cmp.Compare(int32(a.seq-f.next), int32(b.seq-f.next)) })
	from := len(f.stream)
	for len(f.early) > 0 {
		s := f.early[0]
		skip := int32(f.next - s.seq)
		if skip < 0 {
			break // a hole
		}
		f.early = f.early[1:]
		if int(skip) < len(s.data) { // else a retransmission
			f.stream = append(f.stream, s.data[skip:]...)
			f.next += uint32(len(s.data)) - uint32(skip)
		}
	}
	return f.stream[from:]
}

// Read returns the connections of a capture file in the order of their SYNs. A connection whose octets have a
// hole is an error.
func Read(file string) ([]*Conn, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	type side struct {
		conn   *Conn
		client bool
		flow   *flow
	}
	sides := map[string]*side{}
	var conns []*Conn
	for {
		data, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		p := gopacket.NewPacket(data, r.LinkType(), gopacket.Default)
		tcp, ok := p.TransportLayer().(*layers.TCP)
		if !ok || p.NetworkLayer() == nil {
			continue
		}
		ends := p.NetworkLayer().NetworkFlow()
		src := fmt.Sprintf("%s:%d", ends.Src(), tcp.SrcPort)
		dst := fmt.Sprintf("%s:%d", ends.Dst(), tcp.DstPort)
		key := src + ">" + dst
		if tcp.SYN {
			if !tcp.ACK {
				c := &Conn{Client: src, Server: dst}
				conns = append(conns, c)
				sides[key] = &side{c, true, &flow{next: tcp.Seq + 1}}
				sides[dst+">"+src] = &side{conn: c}
			} else if s := sides[key]; s != nil {
				s.flow = &flow{next: tcp.Seq + 1}
			}
			continue
		}
		s := sides[key]
		if s == nil || s.flow == nil || len(tcp.Payload) == 0 {
			continue
		}
		if added := s.flow.take(segment{tcp.Seq, tcp.Payload}); len(added) > 0 {
			s.conn.turn(s.client, added)
		}
	}
	for key, s := range sides {
		if s.flow != nil && len(s.flow.early) > 0 {
			return nil, fmt.Errorf("%s: %s: octets are missing", file, key)
		}
	}
	return conns, nil
}

// turn notes octets of one side.
func (c *Conn) turn(fromClient bool, data []byte) {
	if fromClient {
		c.FromClient = append(c.FromClient, data...)
	} else {
		c.FromServer = append(c.FromServer, data...)
	}
	if n := len(c.Turns); n > 0 && c.Turns[n-1].FromClient == fromClient {
		c.Turns[n-1].Data = append(c.Turns[n-1].Data, data...)
		return
	}
	c.Turns = append(c.Turns, Turn{fromClient, slices.Clone(data)})
}
