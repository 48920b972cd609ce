package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"

	"weir/internal/strictjson"
)

// predicateEnv declares what predicates see.
var predicateEnv = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable("operation", cel.StringType),
		cel.Variable("effect", cel.StringType),
		cel.Variable("subject", cel.StringType),
		cel.Variable("session", cel.StringType),
		cel.Variable("on_behalf_of", cel.ListType(cel.StringType)),
		cel.Variable("confined", cel.BoolType),
		cel.Variable("conversation", cel.StringType),
		cel.Variable("target", cel.StringType),
		cel.Variable("now", cel.TimestampType),
		cel.Variable("input", cel.DynType),
		cel.CrossTypeNumericComparisons(true),
		cel.ParserRecursionLimit(50),
		cel.ParserExpressionSizeLimit(2000),
	)
})

// predicate is a compiled CEL expression.
type predicate struct {
	program cel.Program
	loops   bool
}

func compilePredicate(text string) (*predicate, error) {
	env, ast, err := checked(text)
	if err != nil {
		return nil, err
	}
	program, err := env.Program(ast, bounded(ast, cel.EvalOptions(cel.OptOptimize))...)
	if err != nil {
		return nil, err
	}
	return &predicate{program: program, loops: comprehensions(ast) > 0}, nil
}

func checked(text string) (*cel.Env, *cel.Ast, error) {
	env, err := predicateEnv()
	if err != nil {
		return nil, nil, err
	}
	parsed, issues := env.Parse(text)
	if issues.Err() == nil {
		if n := comprehensions(parsed); n > maxComprehensions {
			return nil, nil, fmt.Errorf("has %d of all, exists, exists_one, filter and map: at most %d", n, maxComprehensions)
		}
		parsed, issues = env.Check(parsed)
	}
	if issues.Err() != nil {
		var told []string
		for _, e := range issues.Errors() {
			told = append(told, fmt.Sprintf("%d:%d %s", e.Location.Line(), e.Location.Column()+1, e.Message))
		}
		return nil, nil, errors.New(strings.Join(told, "; "))
	}
	if t := parsed.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, nil, fmt.Errorf("must be of type bool, is %s", t)
	}
	return env, parsed, nil
}

// NeverTrue says that a predicate is false whatever it sees.
func NeverTrue(text string) bool {
	env, ast, err := checked(text)
	if err != nil {
		return false
	}
	program, err := env.Program(ast, bounded(ast, cel.EvalOptions(cel.OptPartialEval))...)
	if err != nil {
		return false
	}
	var unknown []*cel.AttributePatternType
	for _, v := range env.Variables() {
		unknown = append(unknown, cel.AttributePattern(v.Name()))
	}
	nothing, err := cel.PartialVars(map[string]any{}, unknown...)
	if err != nil {
		return false
	}
	value, _, err := program.Eval(nothing)
	return err == nil && value == types.False
}

// eval gives what the predicate says of a question. Whatever it can't say is an
// error: also a value that is no bool, and an evaluation that costs too much.
//
// All predicates of one question share a bound, since who asks chooses the input
// that makes them dear. What comes after it is used up can't be said.
func (p *predicate) eval(q *Question) (bool, error) {
	if q.spent > questionCost {
		return false, fmt.Errorf("the predicates that match cost more than %d together", questionCost)
	}
	value, details, err := p.program.Eval((*activation)(q))
	switch {
	case !p.loops:
		q.spent += plainCost
	case details != nil && details.ActualCost() != nil:
		q.spent += *details.ActualCost()
	default:
		q.spent += predicateCost
	}
	if err != nil {
		return false, err
	}
	said, ok := value.Value().(bool)
	if !ok {
		return false, fmt.Errorf("gave %s and not bool", value.Type().TypeName())
	}
	return said, nil
}

// activation shows a question to CEL. What is absent is not there.
type activation Question

// ResolveName gives the value of a variable.
func (a *activation) ResolveName(name string) (any, bool) {
	switch name {
	case "operation":
		return a.Operation, true
	case "effect":
		return a.Effect.String(), true
	case "subject":
		return a.Subject, true
	case "session":
		return a.Session, true
	case "on_behalf_of":
		return a.OnBehalfOf, true
	case "confined":
		return a.Confined, true
	case "conversation":
		return a.Conversation, true
	case "target":
		return a.Target, true
	case "now":
		return a.Now, true
	case "input":
		return a.Input.get()
	default:
		return nil, false
	}
}

// Parent says that there is nothing behind it.
func (a *activation) Parent() cel.Activation { return nil }

// Input is an operation's input as predicates see it: JSON text that is read
// only where a predicate asks for it. The zero Input is none.
type Input struct {
	text *string
	// canonical says that the text was read strictly already.
	canonical bool
	value     any
	state     inputState
}

type inputState int

const (
	inputUnread inputState = iota
	inputRead
	inputBad
)

// NewInput is the input of a JSON text, nil for none.
func NewInput(text *string) Input { return Input{text: text} }

// CanonicalInput is the input of text that strictjson.Canonical gave, which need
// not be read strictly again.
func CanonicalInput(canonical []byte) Input {
	text := string(canonical)
	return Input{text: &text, canonical: true}
}

func (i *Input) get() (any, bool) {
	if i.text == nil || i.state == inputBad {
		return nil, false
	}
	if i.state == inputUnread {
		i.read()
	}
	return i.value, i.state == inputRead
}

// read takes strict JSON only. Text that parsers read differently, such as an
// object with a key twice, is no input: a predicate might look at one reading
// and the operation run with the other.
func (i *Input) read() {
	i.state = inputBad
	if !i.canonical {
		if _, err := strictjson.Canonical(*i.text); err != nil {
			return
		}
	}
	if json.Unmarshal([]byte(*i.text), &i.value) != nil {
		return
	}
	i.state = inputRead
	if i.value == nil {
		i.value = types.NullValue
	}
}

// timeOf keeps times in whole microseconds, as events have them.
func timeOf(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
