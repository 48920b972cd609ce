package policy

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
)

// What a file says survives being written and read again, whatever its texts are.
func TestWrittenAndReadAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFile(t)
		text := f.YAML()
		back, err := ParseFile("test.yaml", text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		sameProto(t, back.Policies, f.Policies, text)
		sameProto(t, back.Grants, f.Grants, text)
		sameProto(t, back.Cases, f.Cases, text)
		if again := back.YAML(); string(again) != string(text) {
			t.Fatalf("written again it is\n%s\nand was\n%s", again, text)
		}
		for _, r := range string(text) {
			if r != '\n' && unseen(r) {
				t.Fatalf("%U is shown in\n%q", r, text)
			}
		}
	})
}

func sameProto[M proto.Message](t *rapid.T, got, want []M, text []byte) {
	if len(got) != len(want) {
		t.Fatalf("%d, want %d\n%s", len(got), len(want), text)
	}
	for i := range got {
		if !proto.Equal(got[i], want[i]) {
			t.Fatalf("%v\nwant\n%v\n%s", got[i], want[i], text)
		}
	}
}

var (
	anyID = rapid.OneOf(rapid.StringMatching(idShape), rapid.SampledFrom([]string{"y", "no", "null", "true", "1", "1.5", "0x1F", "1e3", "N", "Off"}))
	// anyText is what people write, and what nobody should.
	anyText = rapid.OneOf(
		rapid.SampledFrom([]string{
			"a: b", "a #b", "- a", "it's", `say "hi"`, "trailing ", " leading", "two\nlines", "two\n\nparagraphs", "tab\there", "\n", "a\n", "\na", "a\r\nb",
			"*all", "&a", "!x", "%a", "@a", "`a`", "[a]", "{a}", "null", "~", "yes", "1_000", "2026-01-02", "<<", "=", "---", "...", "a\n---\nb", "a\n# b", "? a",
			"Größe", "世界", "😀", "\u202egpj", "\u200b", "\x1b[2J", "\x00", "\u0085", "\u2028", "\ufeff", "\U000E0041", "\ufffd", `back\slash`, "a,b", "a: ", "x:", "Ask [a] {b}: c",
			`input.amount > 100 && subject == "agent:bob"`, "has(input.tags) ? input.tags[0] == 'x' : false", "a |\n  b",
		}),
		rapid.StringMatching(`[a-z :#\-'"\[\]{},&*!|>%@\n]{1,30}`), rapid.StringN(1, 50, 100),
	)
	anySegments = rapid.StringMatching(`(\*|[a-z]\*|\*-[a-z]|[a-z0-9_-]{1,30})(/(\*|[a-z]\*[0-9]|[a-z0-9_-]{1,30})){1,2}(/\*\*)?`)
	anyName     = rapid.StringMatching(`[a-z0-9][a-z0-9_-]{0,30}(/[a-z0-9][a-z0-9_-]{0,30}){1,3}`)
	anySubject  = rapid.StringMatching(`(human|agent|service):` + idShape)
)

func drawFile(t *rapid.T) *File {
	return &File{
		Policies: rapid.SliceOfNDistinct(rapid.Custom(drawPolicy), 0, 3, (*gatev1.Policy).GetPolicyId).Draw(t, "policies"),
		Grants: rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) *gatev1.Grant {
			return &gatev1.Grant{
				GrantId: anyID.Draw(t, "id"), Subject: anySubject.Draw(t, "subject"), Operations: rapid.SliceOfN(anySegments, 1, 9).Draw(t, "operations"),
			}
		}), 0, 3, (*gatev1.Grant).GetGrantId).Draw(t, "grants"),
		Cases: rapid.SliceOfNDistinct(rapid.Custom(drawCase), 0, 3, (*gatev1.Case).GetName).Draw(t, "cases"),
	}
}

func drawPolicy(t *rapid.T) *gatev1.Policy {
	p := &gatev1.Policy{
		PolicyId: anyID.Draw(t, "id"), Layer: gatev1.Layer(rapid.IntRange(1, 3).Draw(t, "layer")),
		Description: sometimes(t, "description", anyText),
		Rules:       rapid.SliceOfNDistinct(rapid.Custom(drawRule), 0, 4, (*gatev1.Rule).GetRuleId).Draw(t, "rules"),
	}
	switch p.GetLayer() {
	case gatev1.Layer_LAYER_TENANT:
		p.DelegatedOperations = rapid.SliceOfN(anyName, 0, 9).Draw(t, "delegates")
		if rapid.Bool().Draw(t, "budgets") {
			p.Budgets = &gatev1.Budgets{PerCaller: drawWindow(t)}
		}
		return p
	case gatev1.Layer_LAYER_AGENT:
		p.Target = rapid.StringMatching(`agent:`+idShape).Draw(t, "agent")
	default:
		p.Target = rapid.StringMatching(`[!-~]{1,20}`).Draw(t, "session")
	}
	p.Confined = rapid.Bool().Draw(t, "confined")
	return p
}

func drawRule(t *rapid.T) *gatev1.Rule {
	r := &gatev1.Rule{
		RuleId: anyID.Draw(t, "id"), Verdict: gatev1.Verdict(rapid.IntRange(1, 3).Draw(t, "verdict")),
		Operations: rapid.SliceOfN(anySegments, 1, 9).Draw(t, "operations"), When: sometimes(t, "when", anyText), Description: sometimes(t, "why", anyText),
	}
	for _, e := range rapid.SliceOfNDistinct(rapid.IntRange(1, 3), 0, 3, rapid.ID).Draw(t, "effects") {
		r.Effects = append(r.Effects, registryv1.Effect(e))
	}
	switch r.GetVerdict() {
	case gatev1.Verdict_VERDICT_ALLOW:
		r.AllowWrites = rapid.Bool().Draw(t, "writes")
		if rapid.Bool().Draw(t, "budget") {
			r.Budget = drawWindow(t)
		}
	case gatev1.Verdict_VERDICT_ASK:
		terms := &gatev1.Terms{
			OnTimeout: gatev1.OnTimeout(rapid.IntRange(0, 3).Draw(t, "timeout")), NoteRequired: rapid.Bool().Draw(t, "note"),
			Approvers: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *gatev1.Approver {
				return &gatev1.Approver{
					Scope: rapid.SampledFrom([]string{"approval.decide", "approval.decide.finance"}).Draw(t, "scope"),
					Count: rapid.Int32Range(0, 10).Draw(t, "count"), People: rapid.SliceOfNDistinct(rapid.StringMatching(`human:`+idShape), 0, 3, rapid.ID).Draw(t, "people"),
				}
			}), 0, 3).Draw(t, "approvers"),
		}
		if rapid.Bool().Draw(t, "ttl") {
			terms.Ttl = durationpb.New(time.Duration(rapid.Int64Range(1, 30*24*3600).Draw(t, "ttl")) * time.Second)
		}
		if !proto.Equal(terms, &gatev1.Terms{}) {
			r.Terms = terms
		}
	}
	return r
}

func drawWindow(t *rapid.T) *gatev1.Window {
	period := time.Second + time.Duration(rapid.Int64Range(0, int64(24*time.Hour-time.Second)).Draw(t, "period"))
	return &gatev1.Window{Limit: rapid.Int32Range(1, 100_000).Draw(t, "limit"), Period: durationpb.New(period)}
}

func drawCase(t *rapid.T) *gatev1.Case {
	check := &gatev1.DryRun{
		Caller: &gatev1.Caller{
			Subject: anySubject.Draw(t, "subject"), Session: sometimes(t, "session", anyText), Confined: rapid.Bool().Draw(t, "confined"),
			OnBehalfOf: rapid.SliceOfN(anySubject, 0, 3).Draw(t, "on behalf of"),
		},
		Operation: anyName.Draw(t, "operation"), Effect: registryv1.Effect(rapid.IntRange(0, 3).Draw(t, "effect")),
		ConversationId: sometimes(t, "conversation", anyID), TargetConversationId: sometimes(t, "target", anyID),
	}
	if rapid.Bool().Draw(t, "now") {
		check.Now = timestamppb.New(time.Unix(0, rapid.Int64Range(0, 1<<61).Draw(t, "time")))
	}
	if rapid.Bool().Draw(t, "input") {
		check.InputJson = proto.String(drawJSON(t, 3))
	}
	return &gatev1.Case{
		Name: anyText.Draw(t, "name"), Check: check, Verdict: gatev1.Verdict(rapid.IntRange(1, 3).Draw(t, "verdict")),
		Rule: sometimes(t, "rule", rapid.StringMatching(idShape+"/"+idShape)), Reason: sometimes(t, "reason", rapid.SampledFrom([]string{"RULE", "NOT_GRANTED"})),
	}
}

// drawJSON is compact JSON as the parser writes it.
func drawJSON(t *rapid.T, depth int) string {
	text := func(label string) string {
		return jsonString(rapid.OneOf(rapid.Just(""), anyText).Draw(t, label))
	}
	kinds := 4
	if depth == 0 {
		kinds = 2
	}
	switch rapid.IntRange(0, kinds).Draw(t, "kind") {
	case 0:
		return rapid.SampledFrom([]string{"null", "true", "false", "{}", "[]"}).Draw(t, "word")
	case 1:
		return rapid.SampledFrom([]string{"0", "-0", "0.1", "1.0", "1E5", "1e+5", "-12.5e-7", "9007199254740992", "123456789012345680000", "1.50"}).Draw(t, "number")
	case 2:
		return text("string")
	case 3:
		return "[" + drawJSON(t, depth-1) + "," + drawJSON(t, depth-1) + "]"
	default:
		key := text("key")
		if !json.Valid([]byte(key)) || key == `"b"` {
			key = `"a"`
		}
		return fmt.Sprintf(`{%s:%s,"b":%s}`, key, drawJSON(t, depth-1), drawJSON(t, depth-1))
	}
}

func sometimes(t *rapid.T, label string, g *rapid.Generator[string]) string {
	if rapid.Bool().Draw(t, label+"?") {
		return ""
	}
	return g.Draw(t, label)
}
