//go:build race

package target

func init() { raceEnabled = true }
