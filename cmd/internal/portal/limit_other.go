//go:build !unix

package portal

import "math"

// maxDescriptors is how many file descriptors this process may have open: here the system sets no bound of its own.
func maxDescriptors() int { return math.MaxInt32 }
