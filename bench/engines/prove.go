package engines

import (
	"fmt"
	"slices"
	"strings"
)

// Prove compares an engine's answers with what the rules say, on every name that
// Questions gives, with amounts around the limit if a rule has one.
func Prove(e Engine, rules []Rule) error {
	amounts := []int{LastAmount}
	if hasPredicate(rules) {
		amounts = append(amounts, limit-1, limit)
	}
	for _, operation := range Questions(rules) {
		for _, amount := range amounts {
			ask, err := e.Question(operation, amount)
			if err != nil {
				return err
			}
			got, err := ask()
			if err != nil {
				return fmt.Errorf("%s of %d: %w", operation, amount, err)
			}
			if want := Allowed(rules, operation, amount); got != want {
				return fmt.Errorf("%s of %d: allowed is %v, want %v", operation, amount, got, want)
			}
		}
	}
	return nil
}

// provenRules bounds how many rules Questions are about.
const provenRules = 60

// Questions are names that rules are about, names next to those, and names that
// several rules are about at once.
func Questions(rules []Rule) []string {
	names := []string{
		LastOperation, "crm/notes", "crm/notes/ad", "other/thing",
		"ns0/op5", "ns0/area/op5", "ns0/xyz5", "ns0/5", "ns0/x/5", "ns00/op1", "ns0/area/op8",
		"x/purge14", "x/purge144", "x/y/purge14",
		"team24-red/export", "team24-/export", "team24/export", "team24-red/imports", "team24-a/b/export", "team/export",
	}
	// An odd step, so that verdicts and patterns, which come at even ones, all turn up.
	step := max(1, len(rules)/provenRules) | 1
	for i := 0; i < len(rules); i += step {
		name := strings.ReplaceAll(rules[i].Pattern, "*", "some")
		names = append(names, name, name+"x", name+"/more")
	}
	return names
}

// Allowed is what the rules say, read one by one: some rule allows, and none says
// otherwise.
func Allowed(rules []Rule, operation string, amount int) bool {
	said := false
	for _, r := range rules {
		if !r.covers(operation) || r.Below > 0 && amount >= r.Below {
			continue
		}
		if r.Verdict != Allow {
			return false
		}
		said = true
	}
	return said
}

func (r Rule) covers(operation string) bool {
	return slices.EqualFunc(strings.Split(r.Pattern, "/"), strings.Split(operation, "/"), func(pattern, segment string) bool {
		before, after, wild := strings.Cut(pattern, "*")
		if !wild {
			return pattern == segment
		}
		return len(segment) >= len(before)+len(after) && strings.HasPrefix(segment, before) && strings.HasSuffix(segment, after)
	})
}
