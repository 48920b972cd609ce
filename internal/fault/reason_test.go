package fault

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"testing"

	"google.golang.org/grpc/codes"
)

func TestEveryKindHasItsOwnCode(t *testing.T) {
	seen := map[codes.Code]Kind{codes.OK: 0, codes.Unknown: 0, codes.Unimplemented: 0}
	for k := range kinds {
		kind := Kind(k)
		if kind.String() == "" {
			t.Errorf("kind %d has no row", k)
		}
		if other, taken := seen[kind.Code()]; taken {
			t.Errorf("%v and %v both are %v", kind, other, kind.Code())
		}
		seen[kind.Code()] = kind
		if kindOf(kind.Code()) != kind {
			t.Errorf("%v comes back as %v", kind, kindOf(kind.Code()))
		}
	}
	if last := KindDeadlineExceeded; int(last) != len(kinds)-1 {
		t.Errorf("%d kinds have rows, want %d", len(kinds), last+1)
	}
}

func TestEveryKindIsUsed(t *testing.T) {
	used := map[Kind]bool{}
	for _, kind := range reasons {
		used[kind] = true
	}
	for k := range kinds {
		if !used[Kind(k)] {
			t.Errorf("no reason is %v", Kind(k))
		}
	}
}

// The compiler can't tell that a constant is missing from the table, so the source is
// read.
func TestEveryDeclaredReasonHasARow(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	spelling := regexp.MustCompile(`^[A-Z][A-Z0-9_]+[A-Z0-9]$`) // of google.rpc.ErrorInfo
	declared := map[Reason]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for _, value := range spec.Values {
			literal, ok := value.(*ast.BasicLit)
			if !ok {
				continue
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			reason := Reason(text)
			if declared[reason] {
				t.Errorf("%s is declared twice", reason)
			}
			declared[reason] = true
			if _, ok := reasons[reason]; !ok {
				t.Errorf("%s has no row", reason)
			}
			if !spelling.MatchString(text) || len(text) > 63 {
				t.Errorf("%s is not spelt like a reason", reason)
			}
		}
		return true
	})
	if len(declared) == 0 || len(declared) != len(reasons) {
		t.Errorf("%d reasons declared, %d in the table", len(declared), len(reasons))
	}
}
