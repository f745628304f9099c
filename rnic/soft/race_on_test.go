//go:build race

package soft_test

// raceEnabled: the race detector allocates by itself.
const raceEnabled = true
