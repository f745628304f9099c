// Package sock is the byte stream below the protocol layers: vectored, and non-blocking where the
// system allows it, so that the goroutine that reads a message can place it where it belongs and
// the goroutine that posts one can send it. MPA and iSCSI over TCP both stand on it.
//
// A Socket has two implementations that behave alike: TCP, and one in memory on channels that
// lives in virtual time. A Poller polls TCP's and Unix's rather than sleep, where that is faster.
package sock
