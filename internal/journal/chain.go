package journal

import "fmt"

// chain proves, event by event, that a replay misses none but erased ones.
//
// Where an event names another predecessor than the version reached, there is a
// hole: near ends what was read, far is where it goes on. Later events name the
// erased ones, each with its predecessor; a hole is closed when these links lead
// from far back to near. Links only lead back, so a hole is closed by exactly
// the events that were in it or not at all.
//
// An event that erases the past is a new beginning: it follows whatever version,
// and what was before it needs no proof.
type chain struct {
	version uint64
	holes   []hole
	// late is how many of the holes have no excuse left: the last event that is
	// read up to was asked for after they were seen, so the event that names
	// what is missing is not newer than that.
	late  int
	links map[uint64]uint64
}

type hole struct{ near, far uint64 }

// add follows the chain to its next event.
func (c *chain) add(e Event) error {
	switch {
	case e.ErasesPast:
		c.holes, c.late = nil, 0
		clear(c.links)
	case e.Previous != c.version:
		c.holes = append(c.holes, hole{near: c.version, far: e.Previous})
	}
	c.version = e.Sequence
	for _, gone := range e.Erases {
		if c.links == nil {
			c.links = make(map[uint64]uint64)
		}
		if previous, ok := c.links[gone.Sequence]; ok && previous != gone.Previous {
			return fmt.Errorf("event %d is said to have followed %d, and %d", gone.Sequence, previous, gone.Previous)
		}
		c.links[gone.Sequence] = gone.Previous
	}
	return nil
}

// closed says whether all holes are closed. Where some are not, but the events
// that name what is missing may be newer than what was read, it is false; read
// on to what is the last event now. Otherwise it is an error.
func (c *chain) closed() (bool, error) {
	var open []hole
	for i, h := range c.holes {
		at, ok := h.far, true
		for ok && at > h.near {
			at, ok = c.links[at]
		}
		if ok && at == h.near {
			continue
		}
		if i < c.late {
			return false, fmt.Errorf("the event after %d names %d as the one before, and nothing says what was erased", h.near, h.far)
		}
		open = append(open, h)
	}
	c.holes, c.late = open, len(open)
	return len(open) == 0, nil
}
