package engines

import (
	"fmt"
	"time"

	gatev1 "weir/gen/gate/v1"
	"weir/services/gate/policy"
)

const subject = "agent:alice"

type weir struct{ book *policy.Book }

// newWeir gives the subject a grant for everything, since the other engines are
// not asked who may do something at all. weir looks it up all the same.
func newWeir(rules []Rule) (Engine, error) {
	p := &gatev1.Policy{PolicyId: "p", Layer: gatev1.Layer_LAYER_TENANT}
	for i, r := range rules {
		rule := &gatev1.Rule{
			RuleId: fmt.Sprintf("r%d", i), Verdict: verdicts[r.Verdict],
			Operations: []string{r.Pattern}, AllowWrites: r.Verdict == Allow,
		}
		if r.Below > 0 {
			rule.When = fmt.Sprintf("input.amount < %d", r.Below)
		}
		p.Rules = append(p.Rules, rule)
	}
	grant := &gatev1.Grant{GrantId: "g", Subject: subject, Operations: []string{"*/**"}}
	book, err := policy.NewBook(1, []*gatev1.Policy{p}, []*gatev1.Grant{grant})
	if err != nil {
		return nil, err
	}
	return weir{book}, nil
}

var verdicts = map[Verdict]gatev1.Verdict{
	Deny: gatev1.Verdict_VERDICT_DENY, Ask: gatev1.Verdict_VERDICT_ASK, Allow: gatev1.Verdict_VERDICT_ALLOW,
}

func (w weir) Question(operation string, amount int) (Question, error) {
	// The first decision that looks at the input parses it, the others find it so.
	input := fmt.Sprintf(`{"amount": %d}`, amount)
	// A write: what no rule allows is not allowed, as with the others.
	q := policy.Question{
		Subject: subject, Session: "s", OnBehalfOf: []string{"human:boss"},
		Operation: operation, Effect: policy.Write, Input: policy.NewInput(&input), Now: time.Now(),
	}
	return func() (bool, error) {
		return w.book.Decide(&q).Verdict == gatev1.Verdict_VERDICT_ALLOW, nil
	}, nil
}
