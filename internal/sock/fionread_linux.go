package sock

import "golang.org/x/sys/unix"

const fionread = unix.SIOCINQ
