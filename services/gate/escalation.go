package gate

import (
	"regexp"
	"slices"
	"strings"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/visible"
	"weir/services/gate/policy"
)

// flag is a reason for an approver to look twice. Flags decide nothing.
type flag struct {
	Kind   gatev1.FlagKind
	Detail string `json:",omitempty"` // where, never a value
}

func (f flag) proto() *gatev1.Flag { return &gatev1.Flag{Kind: f.Kind, Detail: visible.Text(f.Detail)} }

func flagFrom(p *gatev1.Flag) flag { return flag{Kind: p.GetKind(), Detail: p.GetDetail()} }

// withFlag gives the flags with one more, once.
func withFlag(flags []flag, f flag) []flag {
	if slices.ContainsFunc(flags, func(g flag) bool { return g.Kind == f.Kind && g.Detail == f.Detail }) {
		return flags
	}
	return append(slices.Clone(flags), f)
}

// matter is what detectors look at.
type matter struct {
	Operation string
	Effect    policy.Effect
	Input     inspected
	Terms     policy.Terms
	FirstUse  bool
}

// detector looks for one kind of escalation and says where it saw it.
type detector struct {
	kind   gatev1.FlagKind
	detect func(matter) (detail string, found bool)
}

// detectors is the one table of escalations. AMENDED has no row: it is set when
// an approver amends.
var detectors = []detector{
	{gatev1.FlagKind_FLAG_KIND_WIDENS_ACCESS, func(m matter) (string, bool) {
		if m.does(making, access) {
			return "the operation's name", true
		}
		return m.Input.where(func(n leaf) bool {
			return n.is("verdict", "allow") || n.is("allow_writes", "true") || n.key == "allow" && n.text != ""
		})
	}},
	{gatev1.FlagKind_FLAG_KIND_WEAKENS_GATE, func(m matter) (string, bool) {
		if m.does(removing, append(gates, access...)) {
			return "the operation's name", true
		}
		return m.Input.where(func(n leaf) bool {
			return slices.Contains([]string{"gate", "gated", "approval", "require_approval", "approval_required", "policy"}, n.key) &&
				slices.Contains([]string{"false", "null", "none", "off", "disabled"}, n.text)
		})
	}},
	{gatev1.FlagKind_FLAG_KIND_ALLOWS_ON_TIMEOUT, func(m matter) (string, bool) {
		if m.Terms.OnTimeout == policy.TimeoutAllow {
			return "this approval itself counts as given when nobody answers", true
		}
		return m.Input.where(func(n leaf) bool { return n.key == "on_timeout" && strings.HasSuffix(n.text, "allow") })
	}},
	{gatev1.FlagKind_FLAG_KIND_BROAD_AGENT, func(m matter) (string, bool) {
		if !m.does(making, agents) {
			return "", false
		}
		at, broad := m.Input.where(func(n leaf) bool { return strings.Contains(n.text, "*") })
		if !broad && !m.Input.has("gate", "gated", "policy", "policies", "operations") {
			return "it names no gate and no operations", true
		}
		return at, broad
	}},
	{gatev1.FlagKind_FLAG_KIND_CREDENTIAL, func(m matter) (string, bool) {
		return strings.Join(m.Input.credentials, ", "), len(m.Input.credentials) > 0
	}},
	{gatev1.FlagKind_FLAG_KIND_TARGETS_GATE, func(m matter) (string, bool) {
		return "the operation's name", slices.ContainsFunc(words(m.Operation), func(w string) bool {
			return slices.Contains(gates, w) || slices.Contains(access, w)
		})
	}},
	{gatev1.FlagKind_FLAG_KIND_SCRIPT_WRITES, func(m matter) (string, bool) {
		if m.Effect == policy.Read {
			return "", false
		}
		return m.Input.where(func(n leaf) bool {
			return slices.Contains([]string{"script", "source", "code"}, n.key) && callsOperation.MatchString(n.text)
		})
	}},
	{gatev1.FlagKind_FLAG_KIND_FIRST_USE, func(m matter) (string, bool) { return "", m.FirstUse }},
}

// The words that operations are named by.
var (
	making   = []string{"put", "create", "add", "grant", "set", "update", "widen", "promote", "start", "spawn"}
	removing = []string{"delete", "remove", "disable", "clear", "drop", "revoke", "reset", "skip", "bypass", "set", "update", "put"}
	access   = []string{"grant", "grants", "policy", "policies", "permission", "permissions", "role", "roles", "scope", "scopes"}
	gates    = []string{"gate", "gates", "approval", "approvals", "audit", "rule", "rules"}
	agents   = []string{"agent", "agents"}
)

// callsOperation is a script that runs operations.
var callsOperation = regexp.MustCompile(`\b(weir\.)?(call|invoke|run)\s*\(`)

// words splits a name where its parts do.
func words(operation string) []string {
	return strings.FieldsFunc(operation, func(r rune) bool { return r == '/' || r == '_' || r == '-' })
}

// does says whether the operation's name holds a verb and an object.
func (m matter) does(verbs, objects []string) bool {
	parts := words(m.Operation)
	verb := slices.IndexFunc(parts, func(w string) bool { return slices.Contains(verbs, w) })
	return verb >= 0 && slices.ContainsFunc(parts, func(w string) bool { return w != parts[verb] && slices.Contains(objects, w) })
}

// escalations runs the table.
func escalations(m matter) []flag {
	var flags []flag
	for _, d := range detectors {
		if detail, found := d.detect(m); found {
			flags = append(flags, flag{Kind: d.kind, Detail: detail})
		}
	}
	return flags
}
