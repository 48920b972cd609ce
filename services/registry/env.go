package registry

import "iter"

// Env is what names mean to one invocation: the layers that it sees, as one.
// It is built once for a root invocation and inherited by all nested ones.
//
// Layers wrap one another; the first that knows a name wins. Today there is the
// core alone.
type Env interface {
	// Lookup gives the operation of a name.
	Lookup(name string) (*Operation, bool)
	// Names lists all names in order, each once.
	Names() iter.Seq[string]
}

// core is the curated catalogue as a layer. It never changes while the process
// runs.
type core struct{ catalogue *catalogue }

// Lookup finds a curated operation.
func (c core) Lookup(name string) (*Operation, bool) {
	o, ok := c.catalogue.operations[name]
	return o, ok
}

// Names lists the curated operations.
func (c core) Names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, name := range c.catalogue.names {
			if !yield(name) {
				return
			}
		}
	}
}
