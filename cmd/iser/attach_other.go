//go:build !linux

package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"goiwarp/cmd/iser/internal/blockdev"
)

func (o *attachOptions) run(*cobra.Command, *connectOptions, []string) error {
	return blockdev.ErrNotLinux
}

func detach(context.Context, string, bool, time.Duration) error { return blockdev.ErrNotLinux }

func attached() ([]blockdev.Device, error) { return nil, blockdev.ErrNotLinux }
