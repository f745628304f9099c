//go:build verbs && cgo && linux

package verbs

// #include <stdlib.h>
// #include "shim.h"
// static struct ibv_mr *reg(struct ibv_pd *pd, uintptr_t addr, size_t len, int flags)
// {
// 	return ibv_reg_mr(pd, (void *)addr, len, flags);
// }
import "C"

import (
	"runtime"
	"unsafe"
)

// registerMemory registers mem. Its address crosses as a number: the device keeps it for longer than the call.
func registerMemory(p *C.struct_ibv_pd, mem []byte, flags C.int) (*C.struct_ibv_mr, error) {
	m, err := C.reg(p, C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), C.size_t(len(mem)), flags)
	runtime.KeepAlive(mem)
	return m, err
}
