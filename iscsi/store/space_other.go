//go:build !linux

package store

import "errors"

// Space implements Spacer, which needs Linux.
func (s *File) Space() (used, available int64, err error) { return 0, 0, errors.ErrUnsupported }
