//go:build unix

package main

import "syscall"

// privately runs f, which creates a file that only its owner may use.
func privately[T any](f func() (T, error)) (T, error) {
	old := syscall.Umask(0o177)
	defer syscall.Umask(old)
	return f()
}
