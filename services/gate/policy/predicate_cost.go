package policy

import (
	"fmt"
	"regexp"
	"regexp/syntax"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

// CEL charges a call after it ran, and by the outermost size of its arguments:
// one comparison of two trees whose branches are shared can take for ever and
// cost 1. So calls whose work follows what lies inside of their arguments weigh
// those first, refuse what is over the limit, and are charged what they weighed.

const (
	// predicateCost bounds one evaluation, in CEL's units of about one elementary
	// step each: some milliseconds at the most.
	predicateCost = 10_000
	// questionCost bounds all evaluations of one question together, some tenths of a
	// second, and plainCost is what one without a loop counts there.
	questionCost = 250_000
	plainCost    = 20
	// maxStates bounds a regular expression, so that a match is at most so many
	// steps for each byte of the text.
	maxStates = 200
	// maxComprehensions bounds what the types of one expression cost to check, which
	// grows faster than the expression where one is made of the other.
	maxComprehensions = 8
	// lightText is how much of a text weighs as much as one number.
	lightText = 100
)

// comprehensions counts the loops of an expression.
func comprehensions(parsed *cel.Ast) int {
	n := 0
	ast.PreOrderVisit(parsed.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.ComprehensionKind {
			n++
		}
	}))
	return n
}

// bounded are the options of a program. Counting takes several times what a
// comparison does, and without a loop there is nothing to add up: an expression
// has some hundred calls at the most, and each is bounded by itself.
func bounded(a *cel.Ast, more ...cel.ProgramOption) []cel.ProgramOption {
	options := append([]cel.ProgramOption{cel.CustomDecoratorV2(weighing)}, more...)
	if comprehensions(a) > 0 {
		options = append(options, cel.CostLimit(predicateCost), cel.CostTracking(charges{}))
	}
	return options
}

// weighed are the calls that are weighed, and what they do.
var weighed = map[string]func(args []ref.Val) ref.Val{
	operators.Equals:    func(args []ref.Val) ref.Val { return types.Bool(types.Equal(args[0], args[1]) == types.True) },
	operators.NotEquals: func(args []ref.Val) ref.Val { return types.Bool(types.Equal(args[0], args[1]) != types.True) },
	operators.In: func(args []ref.Val) ref.Val {
		if c, ok := args[1].(traits.Container); ok {
			return c.Contains(args[0])
		}
		return types.MaybeNoSuchOverloadErr(args[1])
	},
	operators.Add: func(args []ref.Val) ref.Val {
		if a, ok := args[0].(traits.Adder); ok {
			return a.Add(args[1])
		}
		return types.MaybeNoSuchOverloadErr(args[0])
	},
	overloads.Size: func(args []ref.Val) ref.Val {
		if s, ok := args[0].(traits.Sizer); ok {
			return s.Size()
		}
		return types.MaybeNoSuchOverloadErr(args[0])
	},
}

// boundedMatch stands for matches. It has a name of its own, for which CEL has no
// optimization that would take its place.
const boundedMatch = "bounded_match"

// weighing replaces the calls that have to be weighed.
func weighing(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	call, ok := i.(interpreter.InterpretableCall)
	if !ok {
		return i, nil
	}
	args := call.Args()
	if call.Function() == overloads.Matches && len(args) == 2 {
		return matching(call)
	}
	do, ok := weighed[call.Function()]
	if !ok || len(args) == 0 {
		return i, nil
	}
	return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), args, func(values ...ref.Val) ref.Val {
		if weigh(values) > predicateCost {
			return types.NewErr("this looks at more than %d values", predicateCost)
		}
		return do(values)
	}), nil
}

// matching takes patterns that stand in the policy, never those of a caller.
func matching(call interpreter.InterpretableCall) (interpreter.InterpretableV2, error) {
	literal, ok := call.Args()[1].(interpreter.InterpretableConst)
	if !ok {
		return nil, fmt.Errorf("the pattern of matches must be a literal")
	}
	text, ok := literal.Value().Value().(string)
	if !ok {
		return nil, fmt.Errorf("the pattern of matches must be a text")
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	if states := len(program.Inst); states > maxStates {
		return nil, fmt.Errorf("the pattern of matches has %d states: at most %d", states, maxStates)
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	return interpreter.NewCall(call.ID(), boundedMatch, boundedMatch, call.Args(), func(values ...ref.Val) ref.Val {
		in, ok := values[0].Value().(string)
		switch {
		case !ok:
			return types.MaybeNoSuchOverloadErr(values[0])
		case len(in) > predicateCost:
			return types.NewErr("a text of more than %d bytes is not matched", predicateCost)
		}
		return types.Bool(re.MatchString(in))
	}), nil
}

// charges says what a weighed call cost.
type charges struct{}

// CallCost leaves other calls to CEL.
func (charges) CallCost(function, _ string, args []ref.Val, _ ref.Val) *uint64 {
	var cost uint64
	switch _, ok := weighed[function]; {
	case ok:
		cost = 1 + uint64(weigh(args))
	case function == boundedMatch:
		text, _ := args[0].Value().(string)
		cost = 1 + uint64(len(text))
	default:
		return nil
	}
	return &cost
}

// weigh counts what lies inside of values, as often as it lies there, and stops
// when that is too much.
func weigh(values []ref.Val) int {
	weight := 0
	for _, v := range values {
		weight += inside(v, predicateCost-weight)
	}
	return weight
}

// inside counts one value, up to just over the rest of what may be counted.
func inside(v ref.Val, rest int) int {
	switch v := v.(type) {
	case types.String:
		return len(v) / lightText
	case types.Bytes:
		return len(v) / lightText
	case traits.Mapper:
		weight := 0
		for it := v.Iterator(); weight <= rest && it.HasNext() == types.True; {
			key := it.Next()
			weight += 1 + inside(key, rest-weight) + inside(v.Get(key), rest-weight)
		}
		return weight
	case traits.Lister:
		weight := 0
		for it := v.Iterator(); weight <= rest && it.HasNext() == types.True; {
			weight += 1 + inside(it.Next(), rest-weight)
		}
		return weight
	default:
		return 0
	}
}
