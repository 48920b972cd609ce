package approvals

import (
	"context"
	"fmt"
	"strings"
	"time"

	"weir/cmd/internal/console"
	gatev1 "weir/gen/gate/v1"
)

// States are the names of --state; `all` lists every one.
var States = map[string]gatev1.ApprovalState{
	"all": gatev1.ApprovalState_APPROVAL_STATE_UNSPECIFIED, "pending": gatev1.ApprovalState_APPROVAL_STATE_PENDING,
	"approved": gatev1.ApprovalState_APPROVAL_STATE_APPROVED, "redeemed": gatev1.ApprovalState_APPROVAL_STATE_REDEEMED,
	"denied": gatev1.ApprovalState_APPROVAL_STATE_DENIED, "expired": gatev1.ApprovalState_APPROVAL_STATE_EXPIRED,
	"cancelled": gatev1.ApprovalState_APPROVAL_STATE_CANCELLED, "superseded": gatev1.ApprovalState_APPROVAL_STATE_SUPERSEDED,
}

// maxListed is how many approvals a list has at most. Who has more pending needs another
// way to look at them than a list.
const maxListed = 1000

// List shows approvals, newest first, a line each.
func List(ctx context.Context, t *console.Terminal, client gatev1.ApprovalServiceClient, state gatev1.ApprovalState) error {
	listed, err := client.ListApprovals(ctx, &gatev1.ListApprovalsRequest{State: state, PageSize: maxListed})
	if err != nil {
		return err
	}
	now := time.Now()
	for _, a := range listed.GetApprovals() {
		t.Printf("%s\n", line(t, a, now))
	}
	switch {
	case listed.GetNextPageToken() != "":
		t.Printf("%s\n", t.Yellow(fmt.Sprintf("these are the newest %d; there are more", len(listed.GetApprovals()))))
	case len(listed.GetApprovals()) == 0:
		t.Printf("%s\n", t.Dim("there are none"))
	}
	return nil
}

// line is one approval in short.
func line(t *console.Terminal, a *gatev1.Approval, now time.Time) string {
	parts := []string{
		safe(a.GetApprovalId()), stateText(t, a.GetState()), t.Bold(safe(a.GetOperation())), effectText(t, a),
		safe(a.GetRequester()) + chain(a.GetOnBehalfOf()),
	}
	if left := expiry(t, a, now); left != "" {
		parts = append(parts, left)
	}
	if n := len(a.GetFlags()); n > 0 {
		var names []string
		for _, f := range a.GetFlags() {
			names = append(names, strings.TrimPrefix(f.GetKind().String(), "FLAG_KIND_"))
		}
		parts = append(parts, t.Alarm("! "+strings.Join(names, ", ")))
	}
	return strings.Join(parts, "  ")
}
