//go:build !unix

package main

// privately runs f; where there is no umask the folder has to keep others out.
func privately[T any](f func() (T, error)) (T, error) { return f() }
