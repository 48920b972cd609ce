package conversation

import (
	"slices"

	"weir/internal/identity"
)

// Scopes beyond those that open methods.
const (
	scopeRead   = "conversation.read"
	scopeAdmin  = "conversation.admin"
	scopeErase  = "conversation.erase"
	scopeDecide = "approval.decide"
)

// readableBy says who may read: members, administrators, and a person who can
// decide an approval that is pending, as long as it is.
func (c conversation) readableBy(caller identity.Caller) bool {
	switch {
	case !c.exists():
		return false
	case caller.HasScope(scopeAdmin):
		return true
	case caller.HasScope(scopeRead) && c.isMember(caller.Subject):
		return true
	}
	return caller.HasScope(scopeDecide) && identity.Human.Is(caller.Subject) && c.decidableBy(caller)
}

func (r root) decidableBy(caller identity.Caller) bool {
	return slices.ContainsFunc(r.Pauses, func(p pause) bool {
		return slices.ContainsFunc(p.Scopes, caller.HasScope)
	})
}
