// Command faultpeer is a peer that misbehaves on purpose.
package main

func main() {}
