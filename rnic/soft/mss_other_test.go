//go:build !linux

package soft_test

import "errors"

func setMSS(uintptr, int) error { return errors.ErrUnsupported }
