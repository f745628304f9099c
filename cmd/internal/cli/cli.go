// Package cli is what the programs have in common at their edge: how they end, how they log, and
// how they read and write sizes.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// Patience is how long a program of one task may take to end after a signal.
const Patience = 10 * time.Second

// UsageError is a mistake in how a program was called; it ends the program with status 2.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Usagef makes a UsageError.
func Usagef(format string, args ...any) error {
	return &UsageError{fmt.Errorf(format, args...)}
}

// Args turns cobra's check of the arguments into a UsageError.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return Usagef("%v; see '%s --help'", err, cmd.CommandPath())
		}
		return nil
	}
}

// Main runs root until it returns and returns the exit status: 0, 1 after an error, 2 after a mistake in usage. An error is
// printed as one line. The first SIGINT or SIGTERM cancels root's context; a second one kills the process. A program that
// goes on for patience after the first one, because it waits for a pipe that nobody serves, say, is ended with status 1;
// a patience of 0 lets it take its time.
func Main(root *cobra.Command, patience time.Duration) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	done := make(chan int, 1)
	go func() { done <- run(ctx, root) }()
	if patience == 0 {
		return <-done
	}
	select {
	case status := <-done:
		return status
	case <-ctx.Done():
	}
	select {
	case status := <-done:
		return status
	case <-time.After(patience):
		fmt.Fprintf(os.Stderr, "%s: %s; what it waited for did not come\n", root.Name(), OneLine(context.Cause(ctx)))
		return 1
	}
}

// run runs root under ctx and returns the exit status.
func run(ctx context.Context, root *cobra.Command) int {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return Usagef("%v; see '%s --help'", err, cmd.CommandPath())
	})
	strictCompletion(root)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	name := root.Name() + ": "
	fmt.Fprintf(os.Stderr, "%s%s\n", name, strings.TrimPrefix(OneLine(err), name)) // a package may have the program's name
	var usage *UsageError
	if errors.As(err, &usage) || strings.HasPrefix(err.Error(), "unknown command") {
		return 2
	}
	return 1
}

// strictCompletion has cobra's completion command refuse a shell that it does not know, rather than print its help with status 0.
func strictCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" && !c.Runnable() {
			c.Args, c.DisableFlagsInUseLine = Args(cobra.NoArgs), true
			c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}

// OneLine is err's text on one line.
func OneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// Logger returns a logger of text lines on w at the named level: debug, info, warn or error.
func Logger(w io.Writer, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, Usagef("log level %q: want debug, info, warn or error", level)
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l})), nil
}
