//go:build unix

package cli

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
)

// TestSignalEndsWhatWaits: a signal ends a command that heeds its context at once, and one that cannot, because it is in
// a read that nobody will ever answer, after the patience with it.
func TestSignalEndsWhatWaits(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	for name, c := range map[string]struct {
		wait     func(ctx context.Context) error
		patience time.Duration
		want     int
	}{
		"heeds":            {func(ctx context.Context) error { <-ctx.Done(); return nil }, time.Hour, 0},
		"heeds, unlimited": {func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }, 0, 1},
		"deaf":             {func(context.Context) error { <-never; return nil }, time.Millisecond, 1},
	} {
		t.Run(name, func(t *testing.T) {
			root := &cobra.Command{Use: "test", RunE: func(cmd *cobra.Command, _ []string) error {
				assert.NoError(t, syscall.Kill(syscall.Getpid(), syscall.SIGTERM))
				return c.wait(cmd.Context())
			}}
			root.SetArgs(nil)
			assert.Equal(t, c.want, Main(root, c.patience))
		})
	}
}
