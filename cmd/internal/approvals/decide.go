package approvals

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"

	"weir/cmd/internal/console"
	"weir/cmd/internal/policies"
	gatev1 "weir/gen/gate/v1"
	"weir/internal/strictjson"
)

// Answer is what a person wants to say.
type Answer struct {
	Decision gatev1.Decision
	Note     string
	Remember *gatev1.Remember
	// Amend is the text of the input that should run instead; nil leaves it as it is.
	Amend *string
	Yes   bool // send it without asking
	Full  bool
}

// maxAmendment is what the gate takes.
const maxAmendment = 512 << 10

// ReadAmendment reads the input of --amend. It is strict JSON, or the gate would refuse
// it after the person had read and confirmed it.
func ReadAmendment(path string) (*string, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("--amend: %w", err)
	case info.Size() > maxAmendment:
		return nil, fmt.Errorf("--amend: %s: an input is at most %d bytes, and this has %d", path, maxAmendment, info.Size())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--amend: %w", err)
	}
	if _, err := strictjson.Canonical(string(text)); err != nil {
		return nil, fmt.Errorf("--amend: %s: %w", path, err)
	}
	return proto.String(string(text)), nil
}

// Decide shows an approval, asks whether to go ahead, and sends the answer with the digest
// of what was shown: should the approval have changed by then, the gate refuses it.
func Decide(ctx context.Context, t *console.Terminal, client gatev1.ApprovalServiceClient, id string, answer Answer) error {
	got, err := client.GetApproval(ctx, &gatev1.GetApprovalRequest{ApprovalId: id})
	if err != nil {
		return err
	}
	shown := got.GetApproval()
	hidden := Show(t, shown, time.Now(), answer.Full)
	if answer.Amend != nil {
		t.Printf("%s\n", t.Bold("your amendment"))
		t.Diff(pretty(shown.InputJson), pretty(answer.Amend)) // whole: the person wrote it
	}
	if !answer.Yes {
		yes, err := t.Confirm(ctx, question(answer, hidden))
		if err != nil {
			return err
		}
		if !yes {
			t.Printf("nothing was decided\n")
			return console.Failed
		}
	}
	decided, err := client.DecideApproval(ctx, &gatev1.DecideApprovalRequest{
		ApprovalId: shown.GetApprovalId(), RequestId: ulid.Make().String(), Decision: answer.Decision,
		InputDigest: shown.GetInputDigest(), Note: answer.Note, AmendedInputJson: answer.Amend, Remember: answer.Remember,
	})
	if err != nil {
		return err
	}
	outcome(t, decided.GetApproval())
	return nil
}

func question(answer Answer, hidden int) string {
	verb := "Deny"
	if answer.Decision == gatev1.Decision_DECISION_APPROVE {
		verb = "Approve"
	}
	text := verb + " it"
	if answer.Amend != nil {
		text += ", amended"
	}
	if answer.Remember != nil {
		text += ", and the same again: this " + rememberText(answer.Remember)
	}
	if hidden > 0 {
		text += fmt.Sprintf(", with %d lines of the input not fully shown", hidden)
	}
	return text + "?"
}

// outcome says what the answer came to. One vote need not be enough.
func outcome(t *console.Terminal, a *gatev1.Approval) {
	t.Printf("%s %s\n", safe(a.GetApprovalId()), stateText(t, a.GetState()))
	if a.GetState() == gatev1.ApprovalState_APPROVAL_STATE_PENDING {
		for _, m := range a.GetMissing() {
			t.Printf("  still missing: %s\n", safe(policies.ApproverText(m)))
		}
	}
	if a.GetTrustId() != "" {
		t.Printf("  remembered as trust %s\n", safe(a.GetTrustId()))
	}
}
