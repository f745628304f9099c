//go:build race

package scsi_test

const raceEnabled = true
