//go:build !unix

package main

import "context"

// rescanOnHangup does nothing: this system has no SIGHUP.
func (*disks) rescanOnHangup(context.Context) {}
