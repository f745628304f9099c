package tcp

import "slices"

// cover is which octets of a command's data-in were placed, where they come in any order: a count alone would take octets that came
// twice for others that never did. It is kept as spans that do not touch, in rising order.
type cover []span

// span are the octets from from to before to.
type span struct{ from, to int }

// maxSpans bounds what one command's data may be in pieces.
const maxSpans = 4096

// add takes a span in; false if some of it was there, or if there are too many pieces.
func (c *cover) add(from, to int) bool {
	i, _ := slices.BinarySearchFunc(*c, from, func(s span, at int) int { return s.to - at }) // the first that ends at from or behind it
	s := *c
	left := i < len(s) && s[i].to == from
	next := i
	if left {
		next++
	}
	if next < len(s) && s[next].from < to {
		return false
	}
	right := next < len(s) && s[next].from == to
	switch {
	case left && right:
		s[i].to = s[next].to
		*c = slices.Delete(s, next, next+1)
	case left:
		s[i].to = to
	case right:
		s[next].from = from
	case len(s) == maxSpans:
		return false
	default:
		*c = slices.Insert(s, i, span{from, to})
	}
	return true
}
