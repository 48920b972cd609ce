package gate

// question is one check, with the caller as its credential says. The decision
// on it is a pure function of it and of the caller's grants.
type question struct {
	Agent        bool
	Confined     bool
	Operation    string
	Effect       effect
	Conversation string // that the caller is running in, if any
	Target       string // conversation that the operation acts on, if any
}

// effect says how far an operation reaches.
type effect string

const (
	effectRead  effect = "READ"
	effectWrite effect = "WRITE"
	effectAdmin effect = "ADMIN"
)

// verdict is the gate's answer.
type verdict int

const (
	deny verdict = iota
	ask
	allow
)

// The reasons of answers.
const (
	reasonNotGranted  = "NOT_GRANTED"
	reasonAgentAdmin  = "AGENT_ADMIN"
	reasonSelfTarget  = "SELF_TARGET"
	reasonConfined    = "CONFINED"
	reasonAskLimit    = "ASK_LIMIT"
	reasonReadAllowed = "READ_ALLOWED"
	reasonWriteAsks   = "WRITE_ASKS"
)

type answer struct {
	Verdict verdict
	Reason  string
}

// decide answers a question in a fixed order; the first that denies ends it.
func decide(q question, grants grantList) answer {
	switch {
	// What no configuration lifts.
	case q.Agent && q.Effect == effectAdmin:
		return answer{deny, reasonAgentAdmin}
	case q.Agent && q.Target != "" && q.Target == q.Conversation:
		return answer{deny, reasonSelfTarget}
	// A capability is a grant; without one nothing else counts.
	case !grants.match(q.Operation):
		return answer{deny, reasonNotGranted}
	case q.Confined && q.Effect != effectRead:
		return answer{deny, reasonConfined}
	// No rule has an opinion yet: what changes something asks.
	case q.Effect == effectRead:
		return answer{allow, reasonReadAllowed}
	default:
		return answer{ask, reasonWriteAsks}
	}
}
