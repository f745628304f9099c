package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// build makes what the legs need of ours: static programs in dir and, if a leg asks for the hardware provider, programs that are
// linked with Debian's libibverbs and librdmacm, which the guest has too, in dir/verbs, with the provider's own tests.
func build(ctx context.Context, legs []leg, dir string) error {
	var static, verbs []string
	for _, l := range legs {
		for _, p := range l.programs {
			if l.verbs {
				verbs = append(verbs, "goiwarp/"+p)
			} else {
				static = append(static, "goiwarp/"+p)
			}
		}
	}
	if err := goBuild(ctx, static, "CGO_ENABLED=0", "build", "-trimpath", "-ldflags=-s -w", "-o", dir+"/"); err != nil {
		return err
	}
	if verbs == nil {
		return nil
	}
	dir = filepath.Join(dir, "verbs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := goBuild(ctx, verbs, "CGO_ENABLED=1", "build", "-tags=verbs", "-trimpath", "-ldflags=-s -w", "-o", dir+"/"); err != nil {
		return err
	}
	return goBuild(ctx, []string{"goiwarp/rnic/verbs"}, "CGO_ENABLED=1", "test", "-c", "-tags=verbs", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, "verbs.test"))
}

// goBuild runs the go command on packages, each once.
func goBuild(ctx context.Context, packages []string, cgo string, args ...string) error {
	if len(packages) == 0 {
		return nil
	}
	slices.Sort(packages)
	cmd := exec.CommandContext(ctx, "go", append(args, slices.Compact(packages)...)...)
	cmd.Env = append(os.Environ(), cgo, "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	return nil
}
