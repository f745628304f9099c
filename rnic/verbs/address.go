//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

func (e *endpoint) address(peer C.int) net.Addr {
	var raw unix.RawSockaddrAny
	C.gw_address(e.id, peer, unsafe.Pointer(&raw))
	return tcpAddr(&raw)
}

// tcpAddr reads a socket address. On iWARP it is one of TCP; elsewhere it only looks like one.
func tcpAddr(raw *unix.RawSockaddrAny) net.Addr {
	if raw.Addr.Family == unix.AF_INET6 {
		a := (*unix.RawSockaddrInet6)(unsafe.Pointer(raw))
		ip := netip.AddrFrom16(a.Addr)
		if a.Scope_id != 0 {
			if i, err := net.InterfaceByIndex(int(a.Scope_id)); err == nil {
				ip = ip.WithZone(i.Name)
			}
		}
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, port(a.Port)))
	}
	a := (*unix.RawSockaddrInet4)(unsafe.Pointer(raw))
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4(a.Addr), port(a.Port)))
}

// port turns a port between the network's order and the host's.
func port(p uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], p)
	return binary.NativeEndian.Uint16(b[:])
}

// resolve finds the socket address of "host:port".
func resolve(ctx context.Context, addr string) (*unix.RawSockaddrAny, error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	n, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	ip := netip.IPv4Unspecified()
	if literal, err := netip.ParseAddr(host); err == nil {
		ip = literal.Unmap() // a look-up would lose its zone
	} else if host != "" {
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return nil, err
		}
		ip = ips[0].Unmap()
	}
	raw := new(unix.RawSockaddrAny)
	if ip.Is4() {
		*(*unix.RawSockaddrInet4)(unsafe.Pointer(raw)) = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: port(uint16(n)), Addr: ip.As4()}
		return raw, nil
	}
	a := unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: port(uint16(n)), Addr: ip.As16()}
	if z := ip.Zone(); z != "" {
		i, err := net.InterfaceByName(z)
		if err != nil {
			return nil, err
		}
		a.Scope_id = uint32(i.Index)
	}
	*(*unix.RawSockaddrInet6)(unsafe.Pointer(raw)) = a
	return raw, nil
}

// csockaddr is raw for C.
func csockaddr(raw *unix.RawSockaddrAny) *C.struct_sockaddr {
	return (*C.struct_sockaddr)(unsafe.Pointer(raw))
}
