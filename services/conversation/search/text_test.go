package search

import (
	"strings"
	"testing"

	conversationv1 "weir/gen/conversation/v1"
)

func TestTextOfAMessage(t *testing.T) {
	t.Parallel()
	text := func(s string) *conversationv1.Part {
		return &conversationv1.Part{Part: &conversationv1.Part_Text{Text: s}}
	}
	data := func(json string) *conversationv1.Part {
		return &conversationv1.Part{Part: &conversationv1.Part_Data{Data: &conversationv1.Data{MediaType: "type/of", Json: json}}}
	}
	json := func(s string) *string { return &s }
	for name, test := range map[string]struct {
		parts []*conversationv1.Part
		want  string
	}{
		"nothing":      {nil, ""},
		"text":         {[]*conversationv1.Part{text("one"), text("two words")}, "one\ntwo words"},
		"data":         {[]*conversationv1.Part{data(`{"key":"value","n":-1.50,"deep":[{"a":["b",{"c":"d"}]},true,null],"e\u00e9":"\u00e9\n"}`)}, "value\n-1.50\nb\nd\né\n"},
		"one value":    {[]*conversationv1.Part{data(`"only"`), data(`12`), data(`false`)}, "only\n12"},
		"broken json":  {[]*conversationv1.Part{data(`["a", "b`), text("after")}, "a\nafter"},
		"key as value": {[]*conversationv1.Part{data(`{"k":"k","l":["k"]}`)}, "k\nk"},
		"call": {[]*conversationv1.Part{{Part: &conversationv1.Part_Call{Call: &conversationv1.Call{
			InvocationId: "inv", CallId: "call", Operation: "git/push", InputJson: json(`{"branch":"main"}`),
		}}}}, "git/push\nmain"},
		"result": {[]*conversationv1.Part{{Part: &conversationv1.Part_Result{Result: &conversationv1.Result{
			InvocationId: "inv", CallId: "call", State: "FAILED", OutputJson: json(`{"exit":128}`), Reason: "R", Message: "it broke",
		}}}}, "128\nit broke"},
		"approval": {[]*conversationv1.Part{{Part: &conversationv1.Part_Approval{Approval: &conversationv1.ApprovalNote{
			ApprovalId: "id", Operation: "git/push", State: "DENIED", Requester: "agent:a", DecidedBy: "human:h", Note: "not today", ApproverScopes: []string{"s"},
		}}}}, "git/push\nnot today"},
		"blob": {[]*conversationv1.Part{{Part: &conversationv1.Part_Blob{Blob: &conversationv1.Blob{
			Uri: "https://files/report.pdf", MediaType: "application/pdf", Size: 5, Sha256: strings.Repeat("0", 64),
		}}}}, "https://files/report.pdf"},
		"turn": {[]*conversationv1.Part{{Part: &conversationv1.Part_Turn{Turn: &conversationv1.TurnNote{
			Group: "group:g", Member: "agent:a", MessageId: "m", Note: "no opinion",
		}}}}, "no opinion"},

		"up to the bound": {[]*conversationv1.Part{text(strings.Repeat("x", MaxText))}, strings.Repeat("x", MaxText)},
		"a word across the bound": {
			[]*conversationv1.Part{text("first " + strings.Repeat("x", MaxText))}, "first",
		},
		"parts behind the bound": {
			[]*conversationv1.Part{text(strings.Repeat("x", MaxText-3) + "\n"), text("yes"), text("no")}, strings.Repeat("x", MaxText-3) + "\n",
		},
		"data behind the bound": {
			[]*conversationv1.Part{data(`["` + strings.Repeat("x ", MaxText/2) + `","no"]`)}, strings.Repeat("x ", MaxText/2-1) + "x",
		},
		"a character across the bound": {
			[]*conversationv1.Part{text("x" + strings.Repeat("ä", MaxText))}, "x" + strings.Repeat("ä", MaxText/2-1),
		},
	} {
		if got := Text(test.parts); got != test.want {
			t.Errorf("%s: %q (%d bytes), want %q (%d bytes)", name, shown(got), len(got), shown(test.want), len(test.want))
		}
	}
}

func shown(s string) string { return s[:min(len(s), 100)] }
