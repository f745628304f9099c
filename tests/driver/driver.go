// Package driver has what the programs that set this project against others share: other projects' programs, ports for them, and the tables that a
// run leaves in the documents.
package driver

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
)

// Need looks for a program of Debian's, and installs its package if that is allowed (root). A service in it is not started.
func Need(ctx context.Context, program, pkg string, install bool) error {
	if _, err := exec.LookPath(program); err == nil {
		return nil
	}
	if !install {
		return fmt.Errorf("%s is not installed (apt-get install %s, or -install)", program, pkg)
	}
	for _, args := range [][]string{{"update", "-qq"}, {"install", "-y", "-qq", "--no-install-recommends", pkg}} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1") // installed, not started
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	_, err := exec.LookPath(program)
	return err
}

// FreePort finds a port that nobody listens on, for programs that do not say which one they got.
func FreePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// Replace puts text between the lines begin and end of a document.
func Replace(file, begin, end, text string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(b), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no place for the table", file)
	}
	return os.WriteFile(file, []byte(head+begin+"\n"+text+end+tail), 0o644)
}
