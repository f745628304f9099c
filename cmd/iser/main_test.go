package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// No test reads the defaults of whoever runs it.
	if err := os.Setenv("XDG_CONFIG_HOME", "/nonexistent"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
