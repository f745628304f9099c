//go:build !linux

package main

import (
	"fmt"
	"runtime"
)

func openKernel() (kernel, error) {
	return nil, fmt.Errorf("links: %s has no RDMA links that this program knows; --rnic soft needs none", runtime.GOOS)
}
