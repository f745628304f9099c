// Package tests holds what proves the whole and belongs to no single layer: the house rules, the
// conformance tables, captures of other implementations decoded through every layer, and the built
// programs against other people's tools.
package tests
