package conversation

import (
	"fmt"
	"strings"
	"testing"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
)

// Every id that weir derives fits the rule for ids, so that a client can ask
// for it, and no client can have chosen it.
func TestDerivedIDsAreValidAndReserved(t *testing.T) {
	for _, of := range []string{"i", strings.Repeat("i", 64), "a.b", "\x00", ""} {
		for _, id := range []string{callID(of), resultID(of), askID(of), answerID(of), turnID(of, of, of), closingID(openCall{callKey: callKey{Call: of}})} {
			if len(id) > 64 || strings.Trim(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") != "" {
				t.Errorf("%q makes the id %q", of, id)
			}
			_, err := saidBy(ann, "", &conversationv1.NewMessage{MessageId: id, Parts: text("mine")})
			wantReason(t, err, fault.IDMalformed)
		}
	}
	if callID("a") == callID("b") || callID("a") == resultID("a") {
		t.Error("two ids meet")
	}
}

func TestWhatAMessageMayHold(t *testing.T) {
	part := func(p *conversationv1.Part) []*conversationv1.Part { return []*conversationv1.Part{p} }
	call := func(c *conversationv1.Call) []*conversationv1.Part {
		return part(&conversationv1.Part{Part: &conversationv1.Part_Call{Call: c}})
	}
	result := func(r *conversationv1.Result) []*conversationv1.Part {
		return part(&conversationv1.Part{Part: &conversationv1.Part_Result{Result: r}})
	}
	broken := "{"
	const media = len("application/json")
	for name, c := range map[string]struct {
		parts []*conversationv1.Part
		want  fault.Reason
		field string
	}{
		"text":                {parts: text("hello")},
		"data":                {parts: data(`{"a": 1}`)},
		"a blob":              {parts: part(&conversationv1.Part{Part: &conversationv1.Part_Blob{Blob: &conversationv1.Blob{Uri: "s3://b/k"}}})},
		"as much as it can":   {parts: text(strings.Repeat("x", maxMessageBytes))},
		"a byte too much":     {text(strings.Repeat("x", maxMessageBytes+1)), fault.TooLarge, "at.parts"},
		"just too much both":  {append(text(strings.Repeat("x", maxMessageBytes-media-1)), data(`{}`)...), fault.TooLarge, "at.parts"},
		"a tool's call":       {parts: part(toolCall("t1"))},
		"a tool's result":     {parts: part(toolResult("t1"))},
		"a call of no id":     {call(&conversationv1.Call{Operation: "a"}), fault.FieldInvalid, "at.parts[0].call.call_id"},
		"an invocation":       {call(&conversationv1.Call{InvocationId: "i", CallId: "t"}), fault.FieldInvalid, "at.parts[0].call.call_id"},
		"a call of no JSON":   {call(&conversationv1.Call{CallId: "t", InputJson: &broken}), fault.JSONInvalid, "at.parts[0].call.input_json"},
		"a result of no id":   {append(text("see"), result(&conversationv1.Result{State: succeeded})...), fault.FieldInvalid, "at.parts[1].result.call_id"},
		"an invocation's end": {result(&conversationv1.Result{InvocationId: "i", State: succeeded}), fault.FieldInvalid, "at.parts[0].result.call_id"},
		"an unknown end":      {result(&conversationv1.Result{CallId: "t", State: "DENIED"}), fault.FieldInvalid, "at.parts[0].result.state"},
		"an end of no JSON":   {result(&conversationv1.Result{CallId: "t", State: failed, OutputJson: &broken}), fault.JSONInvalid, "at.parts[0].result.output_json"},
		"an approval":         {part(&conversationv1.Part{Part: &conversationv1.Part_Approval{Approval: &conversationv1.ApprovalNote{}}}), fault.FieldInvalid, "at.parts[0]"},
		"a turn":              {part(&conversationv1.Part{Part: &conversationv1.Part_Turn{Turn: &conversationv1.TurnNote{}}}), fault.FieldInvalid, "at.parts[0]"},
		"a part of nothing":   {part(&conversationv1.Part{}), fault.FieldInvalid, "at.parts[0]"},
		"broken JSON":         {append(text("see"), data(`{"a": `)...), fault.JSONInvalid, "at.parts[1].data.json"},
		"a key that is twice": {data(`{"a": 1, "a": 2}`), fault.JSONInvalid, "at.parts[0].data.json"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := saidBy(ann, "at.", &conversationv1.NewMessage{MessageId: "m", Parts: c.parts})
			wantReason(t, err, c.want)
			if err == nil {
				return
			}
			if v := fault.From(err).Violations(); len(v) != 1 || v[0].Field != c.field || v[0].Description == "" {
				t.Fatalf("violations are %v, want one of %s", v, c.field)
			}
		})
	}
}

func TestFingerprintsTellContentsApart(t *testing.T) {
	empty, json := "", "{}"
	call := func(input *string) []*conversationv1.Part {
		return []*conversationv1.Part{{Part: &conversationv1.Part_Call{Call: &conversationv1.Call{InvocationId: "i", Operation: "o", InputJson: input}}}}
	}
	result := func(r *conversationv1.Result) []*conversationv1.Part {
		return []*conversationv1.Part{{Part: &conversationv1.Part_Result{Result: r}}}
	}
	messages := []message{
		{Author: "a"},
		{Author: "b"},
		{Author: "a", Parts: text("")},
		{Author: "a", Parts: text("x")},
		{Author: "a", Parts: text("xy")},
		{Author: "a", Parts: append(text("x"), text("y")...)},
		{Author: "a", Parts: append(text("y"), text("x")...)},
		{Author: "a", Parts: data("x")},
		{Author: "a", Parts: data("")},
		{Author: "a", Parts: call(nil)},
		{Author: "a", Parts: call(&empty)},
		{Author: "a", Parts: call(&json)},
		{Author: "a", Parts: result(&conversationv1.Result{State: "x"})},
		{Author: "a", Parts: result(&conversationv1.Result{Reason: "x"})},
		{Author: "a", Parts: result(&conversationv1.Result{Message: "x"})},
		{Author: "a", Parts: result(&conversationv1.Result{OutputJson: &empty})},
		{Author: "a", To: []string{"x"}},
		{Author: "a", To: []string{"x", "y"}},
		{Author: "a", ReplyTo: "x"},
		{Author: "a", Pinned: true},
		{Author: "a", Summarizes: &conversationv1.Range{First: 1, Last: 1}},
		{Author: "a", Summarizes: &conversationv1.Range{First: 1, Last: 2}},
		{Author: "a", Parts: []*conversationv1.Part{toolCall("i")}},
		{Author: "a", Parts: []*conversationv1.Part{{Part: &conversationv1.Part_Blob{Blob: &conversationv1.Blob{Uri: "x"}}}}},
		{Author: "a", Parts: []*conversationv1.Part{{Part: &conversationv1.Part_Blob{Blob: &conversationv1.Blob{MediaType: "x"}}}}},
		{Author: "a", Parts: []*conversationv1.Part{{Part: &conversationv1.Part_Blob{Blob: &conversationv1.Blob{Size: 1}}}}},
	}
	seen := map[fingerprint]int{}
	for i, m := range messages {
		if j, ok := seen[m.sum()]; ok {
			t.Errorf("messages %d and %d have one fingerprint", j, i)
		}
		seen[m.sum()] = i
	}
}

// Fingerprints are in the journal for good. If this fails, retries of what was
// said before are refused as other content.
func TestFingerprintsStayWhatTheyWere(t *testing.T) {
	m := message{
		Author: ann, To: []string{bob}, ReplyTo: "m0",
		Parts: append(text("hello"), data(`{"a":1}`)...),
	}
	const want = "2bd3b5a8fc1c99ef08ec93bdbafa8b93a8d9504f8c66d81c46ad6e045297188d"
	if got := fmt.Sprintf("%x", m.sum()); got != want {
		t.Fatalf("the fingerprint is %s, it was %s", got, want)
	}
}
