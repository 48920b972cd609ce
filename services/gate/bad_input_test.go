package gate

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/internal/meshtest"
	"weir/services/gate/audit"
)

// badRequest is one field of a request that would be fine, and what must not
// stand in it.
type badRequest struct {
	method  string
	request proto.Message
	field   string
	reason  fault.Reason
	values  []badValue
}

// badValue is put in a field's place: nil leaves it out, and a repeat stands for
// so many copies of what is there. The refusal must say what it says.
type badValue struct {
	name  string
	value any
	says  string
}

type repeat int

// anyValue are the fields that no value is bad in, and why.
var anyValue = map[string]string{
	"expected_revision": "another revision is a conflict, not bad input",
	"revision":          "there is no such policy, or nothing to verify",
	"alone":             "a yes or no",
}

// ids are values that no id has.
var ids = []badValue{
	{"too long", strings.Repeat("a", 65), "63"}, // after the first
	{"a space", "a b", "pattern"},
	{"a space behind", "a ", "pattern"},
	{"dots", "..", "pattern"},
	{"a path", "a/b", "pattern"},
	{"the way up", "a/../b", "pattern"},
	{"percent-encoded", "a%2fb", "pattern"},
	{"NUL", "a\x00", "pattern"},
	{"a line break", "a\n", "pattern"},
	{"Cyrillic", "\u0430bc", "pattern"},
	{"fullwidth", "\uff41bc", "pattern"},
	{"zero-width", "a\u200bb", "pattern"},
	{"a subject's wildcard", "a.*", "pattern"},
	{"a subject's rest", ">", "pattern"},
}

// required adds that the field may not be empty.
func required(values []badValue) []badValue {
	return append([]badValue{{"empty", "", ""}}, values...)
}

// names are values that no operation's name has.
var names = []badValue{
	{"empty", "", "pattern"},
	{"too long", "a/" + strings.Repeat("b", 199), "200"},
	{"one segment", "conversation", "pattern"},
	{"upper case", "conversation/Say", "pattern"},
	{"an empty segment", "conversation//say", "pattern"},
	{"a slash before", "/conversation/say", "pattern"},
	{"a slash behind", "conversation/say/", "pattern"},
	{"the way up", "conversation/../say", "pattern"},
	{"here", "conversation/./say", "pattern"},
	{"percent-encoded", "conversation%2fsay", "pattern"},
	{"an encoded letter", "conversation/s%61y", "pattern"},
	{"NUL", "conversation/say\x00", "pattern"},
	{"a line break", "conversation/say\n", "pattern"},
	{"a space", "conversation/say ", "pattern"},
	{"Cyrillic", "conversation/s\u0430y", "pattern"},
	{"fullwidth", "conversation/\uff53ay", "pattern"},
	{"zero-width", "conversation/s\u200bay", "pattern"},
	{"a wildcard", "conversation/*", "pattern"},
	{"all of it", "conversation/**", "pattern"},
}

var digests = []badValue{
	{"empty", "", "pattern"},
	{"short", strings.Repeat("a", 63), "pattern"},
	{"long", strings.Repeat("a", 65), "pattern"},
	{"upper case", strings.Repeat("A", 64), "pattern"},
	{"not hexadecimal", strings.Repeat("g", 64), "pattern"},
	{"with its kind", "sha256:" + strings.Repeat("a", 64), "pattern"},
	{"a line break", strings.Repeat("a", 64) + "\n", "pattern"},
}

// subjects are values that no subject has.
var subjects = []badValue{
	{"empty", "", "pattern"},
	{"no kind", "alice", "pattern"},
	{"another kind", "robot:alice", "pattern"},
	{"every agent", "agent:*", "pattern"},
	{"upper case", "Agent:alice", "pattern"},
	{"two", "agent:alice,agent:bob", "pattern"},
	{"too long", "agent:" + strings.Repeat("a", 65), "63"},
	{"Cyrillic", "agent:\u0430lice", "pattern"},
	{"NUL", "agent:alice\x00", "pattern"},
}

func enums(mayBeUnset bool) []badValue {
	values := []badValue{
		{"unknown", protoreflect.EnumNumber(99), "defined"},
		{"negative", protoreflect.EnumNumber(-1), "defined"},
	}
	if !mayBeUnset {
		values = append(values, badValue{"unspecified", protoreflect.EnumNumber(0), "0"})
	}
	return values
}

func over(limit int) []badValue {
	return []badValue{{"too long", strings.Repeat("é", limit+1), strconv.Itoa(limit)}}
}

func overBytes(limit int) []badValue {
	return []badValue{
		{"too large", `"` + strings.Repeat("x", limit-1) + `"`, strconv.Itoa(limit)},
		{"too large in bytes", `"` + strings.Repeat("é", limit/2) + `"`, strconv.Itoa(limit)},
	}
}

func tooMany(limit int) []badValue {
	return []badValue{{fmt.Sprintf("%d of them", limit+1), repeat(limit + 1), strconv.Itoa(limit)}}
}

func pageSizes(limit int) []badValue {
	var values []badValue
	for _, n := range []int32{-1, math.MinInt32, int32(limit) + 1, math.MaxInt32} {
		values = append(values, badValue{strconv.Itoa(int(n)), n, strconv.Itoa(limit)})
	}
	return values
}

// tokens are none that any list gave.
func tokens() []badValue {
	encode := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	values := []badValue{}
	for _, token := range []string{
		"x", "%%%", " ", "\x00", "../../", "-1", encode("1.1"), encode("acme"), encode("acme -1"), encode("base"), encode("base -1"), encode(" "), encode("other 1"),
		encode("base " + strings.Repeat("z", 40)), journal.SealToken("other", 1), journal.SealToken("acme", math.MaxUint64), strings.Repeat("A", 512),
	} {
		values = append(values, badValue{strconv.Quote(token), token, "unchanged"})
	}
	return values
}

func durations(least, most time.Duration, mayBeUnset bool) []badValue {
	values := []badValue{
		{"none", durationpb.New(0), ""},
		{"negative", durationpb.New(-time.Second), ""},
		{"too short", durationpb.New(least - 1), ""},
		{"too long", durationpb.New(most + 1), ""},
	}
	if !mayBeUnset {
		values = append(values, badValue{"missing", nil, "required"})
	}
	return values
}

// refusedByField is the whole table. Fields that several requests have in common
// are listed once, in the functions below.
func refusedByField(pending, ready, noted string) []badRequest {
	const policyName, grantName, caseName = "policy.", "grant.", "cases[0].check."
	check, decide := fullCheck(), fullDecision(pending)
	wide, grant, run := fullPolicy(), &gatev1.Grant{GrantId: "g", Subject: "agent:x", Operations: []string{"a/*"}}, fullDryRun()
	redeem := redeem(ready, say("inv-ready", "ready"))
	byID := &gatev1.VerifyPolicyRequest{Subject: &gatev1.VerifyPolicyRequest_PolicyId{PolicyId: "base"}}
	verify := &gatev1.VerifyPolicyRequest{Subject: &gatev1.VerifyPolicyRequest_Policy{Policy: wide}}
	test := &gatev1.TestPolicyRequest{
		Policies: []*gatev1.Policy{wide}, Grants: []*gatev1.Grant{grant},
		Cases: []*gatev1.Case{{Name: "c", Check: run, Verdict: gatev1.Verdict_VERDICT_ASK}},
	}
	var table []badRequest
	row := func(method string, request proto.Message, field string, reason fault.Reason, values []badValue) {
		table = append(table, badRequest{method, request, field, reason, values})
	}
	each := func(method string, request proto.Message, prefix string, rows []badRequest) {
		for _, b := range rows {
			row(method, request, prefix+b.field, b.reason, b.values)
		}
	}

	each(gatev1.GateService_Check_FullMethodName, check, "", checkFields)
	batch := &gatev1.CheckBatchRequest{Checks: []*gatev1.CheckRequest{check}}
	each(gatev1.GateService_CheckBatch_FullMethodName, batch, "checks[0].", checkFields)
	row(gatev1.GateService_CheckBatch_FullMethodName, batch, "checks", fault.FieldInvalid, append(tooMany(100), badValue{"none", repeat(0), "1"}))
	match := &gatev1.MatchGrantsRequest{Operations: []string{"a/b"}}
	row(gatev1.GateService_MatchGrants_FullMethodName, match, "operations", fault.FieldInvalid, tooMany(1000))
	row(gatev1.GateService_MatchGrants_FullMethodName, match, "operations[0]", fault.FieldInvalid, over(200))
	row(gatev1.GateService_CheckStanding_FullMethodName, &gatev1.CheckStandingRequest{}, "operation", fault.FieldInvalid, names[1:]) // none is fine
	row(gatev1.GateService_Redeem_FullMethodName, redeem, "approval_id", fault.IDMalformed, required(ids))
	row(gatev1.GateService_Redeem_FullMethodName, redeem, "request_id", fault.IDMalformed, required(ids))
	row(gatev1.GateService_Redeem_FullMethodName, redeem, "operation", fault.FieldInvalid, names)
	row(gatev1.GateService_Redeem_FullMethodName, redeem, "spec_digest", fault.FieldInvalid, digests)
	row(gatev1.GateService_Redeem_FullMethodName, redeem, "input_digest", fault.FieldInvalid, digests)
	row(gatev1.GateService_Redeem_FullMethodName, redeem, "input_json", fault.FieldInvalid, overBytes(512<<10))
	other := []badValue{{"another", strings.Repeat("0", 64), "must be"}}
	row(gatev1.GateService_Redeem_FullMethodName, redeem, "operation", fault.DigestMismatch, []badValue{{"another", "conversation/read", "must be"}})
	row(gatev1.GateService_Redeem_FullMethodName, redeem, "spec_digest", fault.DigestMismatch, other)
	row(gatev1.GateService_Redeem_FullMethodName, redeem, "input_digest", fault.DigestMismatch, other)
	announce := &gatev1.AnnounceOperationsRequest{Digest: strings.Repeat("c", 64), Operations: []string{"a/b"}}
	row(gatev1.GateService_AnnounceOperations_FullMethodName, announce, "digest", fault.FieldInvalid, digests)
	row(gatev1.GateService_AnnounceOperations_FullMethodName, announce, "operations", fault.FieldInvalid, tooMany(20000))
	row(gatev1.GateService_AnnounceOperations_FullMethodName, announce, "operations[0]", fault.FieldInvalid, names)

	row(gatev1.ApprovalService_GetApproval_FullMethodName, &gatev1.GetApprovalRequest{}, "approval_id", fault.IDMalformed, required(ids))
	row(gatev1.ApprovalService_ListApprovals_FullMethodName, &gatev1.ListApprovalsRequest{}, "state", fault.FieldInvalid, enums(true))
	row(gatev1.ApprovalService_WatchApprovals_FullMethodName, &gatev1.WatchApprovalsRequest{}, "resume_token", fault.FieldInvalid, over(512))
	row(gatev1.ApprovalService_WatchApprovals_FullMethodName, &gatev1.WatchApprovalsRequest{}, "resume_token", fault.CursorUnavailable, tokens())
	each(gatev1.ApprovalService_DecideApproval_FullMethodName, decide, "", decisionFields)
	row(gatev1.ApprovalService_DecideApproval_FullMethodName, decide, "input_digest", fault.DigestMismatch, other)
	row(gatev1.ApprovalService_DecideApproval_FullMethodName, decide, "decision", fault.FieldInvalid,
		[]badValue{{"a denial that remembers", gatev1.Decision_DECISION_DENY.Number(), "APPROVE"}})
	noting := decideAs(noted, say2("inv-noted"), gatev1.Decision_DECISION_DENY, "d-bad")
	row(gatev1.ApprovalService_DecideApproval_FullMethodName, noting, "note", fault.NoteRequired, []badValue{{"none", "", "why"}, {"blank", " \n\u2003", "why"}})
	var malformed []badValue
	for _, name := range slices.Sorted(maps.Keys(malformedJSON)) {
		malformed = append(malformed, badValue{name, malformedJSON[name], "line"})
	}
	row(gatev1.ApprovalService_DecideApproval_FullMethodName, decide, "amended_input_json", fault.JSONInvalid, malformed)
	row(gatev1.PolicyService_ExplainCheck_FullMethodName, &gatev1.ExplainCheckRequest{Check: run}, "check.input_json", fault.JSONInvalid, malformed)
	row(gatev1.PolicyService_TestPolicy_FullMethodName, &gatev1.TestPolicyRequest{Cases: test.GetCases()}, "cases[0].check.input_json", fault.JSONInvalid, malformed)
	decisions := &gatev1.DecideApprovalsRequest{Decisions: []*gatev1.DecideApprovalRequest{decide}}
	each(gatev1.ApprovalService_DecideApprovals_FullMethodName, decisions, "decisions[0].", decisionFields)
	row(gatev1.ApprovalService_DecideApprovals_FullMethodName, decisions, "decisions", fault.FieldInvalid, append(tooMany(100), badValue{"none", repeat(0), "1"}))
	row(gatev1.ApprovalService_CancelApproval_FullMethodName, &gatev1.CancelApprovalRequest{}, "approval_id", fault.IDMalformed, required(ids))
	revoke := &gatev1.RevokeTrustRequest{TrustId: "t"}
	row(gatev1.ApprovalService_RevokeTrust_FullMethodName, revoke, "trust_id", fault.IDMalformed, required(ids))
	row(gatev1.ApprovalService_RevokeTrust_FullMethodName, revoke, "note", fault.FieldInvalid, over(2000))

	each(gatev1.PolicyService_PutGrant_FullMethodName, &gatev1.PutGrantRequest{Grant: grant}, grantName, grantFields)
	row(gatev1.PolicyService_PutGrant_FullMethodName, &gatev1.PutGrantRequest{}, "grant", fault.FieldInvalid, []badValue{{"missing", nil, "required"}})
	row(gatev1.PolicyService_GetGrant_FullMethodName, &gatev1.GetGrantRequest{}, "grant_id", fault.IDMalformed, required(ids))
	row(gatev1.PolicyService_DeleteGrant_FullMethodName, &gatev1.DeleteGrantRequest{}, "grant_id", fault.IDMalformed, required(ids))
	each(gatev1.PolicyService_PutPolicy_FullMethodName, &gatev1.PutPolicyRequest{Policy: wide}, policyName, policyFields)
	row(gatev1.PolicyService_PutPolicy_FullMethodName, &gatev1.PutPolicyRequest{Policy: wide}, "policy.rules", fault.FieldInvalid,
		[]badValue{{"10001 of them", repeat(10001), "1000"}})
	row(gatev1.PolicyService_PutPolicy_FullMethodName, &gatev1.PutPolicyRequest{}, "policy", fault.FieldInvalid, []badValue{{"missing", nil, "required"}})
	row(gatev1.PolicyService_GetPolicy_FullMethodName, &gatev1.GetPolicyRequest{}, "policy_id", fault.IDMalformed, required(ids))
	row(gatev1.PolicyService_ListPolicyRevisions_FullMethodName, &gatev1.ListPolicyRevisionsRequest{PolicyId: "base"}, "policy_id", fault.IDMalformed, required(ids))
	row(gatev1.PolicyService_DeletePolicy_FullMethodName, &gatev1.DeletePolicyRequest{}, "policy_id", fault.IDMalformed, required(ids))
	each(gatev1.PolicyService_VerifyPolicy_FullMethodName, verify, policyName, policyFields)
	row(gatev1.PolicyService_VerifyPolicy_FullMethodName, byID, "policy_id", fault.IDMalformed, ids)
	row(gatev1.PolicyService_VerifyPolicy_FullMethodName, &gatev1.VerifyPolicyRequest{}, "subject", fault.FieldInvalid, []badValue{{"missing", repeat(0), "required"}})
	each(gatev1.PolicyService_ExplainCheck_FullMethodName, &gatev1.ExplainCheckRequest{Check: run}, "check.", dryRunFields)
	row(gatev1.PolicyService_ExplainCheck_FullMethodName, &gatev1.ExplainCheckRequest{}, "check", fault.FieldInvalid, []badValue{{"missing", nil, "required"}})
	row(gatev1.PolicyService_ExplainCheck_FullMethodName, &gatev1.ExplainCheckRequest{Check: run}, "revision", fault.FieldInvalid,
		[]badValue{{"to come", uint64(math.MaxUint64), "at most"}})
	each(gatev1.PolicyService_TestPolicy_FullMethodName, test, "policies[0].", policyFields)
	each(gatev1.PolicyService_TestPolicy_FullMethodName, test, "grants[0].", grantFields)
	each(gatev1.PolicyService_TestPolicy_FullMethodName, test, caseName, dryRunFields)
	row(gatev1.PolicyService_TestPolicy_FullMethodName, test, "policies", fault.FieldInvalid, tooMany(100))
	row(gatev1.PolicyService_TestPolicy_FullMethodName, test, "grants", fault.FieldInvalid, tooMany(1000))
	row(gatev1.PolicyService_TestPolicy_FullMethodName, test, "cases", fault.FieldInvalid, append(tooMany(1000), badValue{"none", repeat(0), "1"}))
	row(gatev1.PolicyService_TestPolicy_FullMethodName, test, "cases[0].check", fault.FieldInvalid, []badValue{{"missing", nil, "required"}})
	row(gatev1.PolicyService_TestPolicy_FullMethodName, test, "cases[0].name", fault.FieldInvalid, required(over(200)))
	row(gatev1.PolicyService_TestPolicy_FullMethodName, test, "cases[0].verdict", fault.FieldInvalid, enums(false))
	row(gatev1.PolicyService_TestPolicy_FullMethodName, test, "cases[0].reason", fault.FieldInvalid, over(64))
	row(gatev1.PolicyService_TestPolicy_FullMethodName, test, "cases[0].rule", fault.FieldInvalid, over(129))

	for _, list := range []struct {
		method  string
		request proto.Message
		most    int
	}{
		{gatev1.ApprovalService_ListApprovals_FullMethodName, &gatev1.ListApprovalsRequest{}, 1000},
		{gatev1.ApprovalService_ListTrusts_FullMethodName, &gatev1.ListTrustsRequest{}, 1000},
		{gatev1.PolicyService_ListGrants_FullMethodName, &gatev1.ListGrantsRequest{}, 1000},
		{gatev1.PolicyService_ListPolicies_FullMethodName, &gatev1.ListPoliciesRequest{}, 100},
		{gatev1.PolicyService_ListPolicyRevisions_FullMethodName, &gatev1.ListPolicyRevisionsRequest{PolicyId: "base"}, 1000},
	} {
		row(list.method, list.request, "page_size", fault.FieldInvalid, pageSizes(list.most))
		row(list.method, list.request, "page_token", fault.FieldInvalid, over(512))
		row(list.method, list.request, "page_token", fault.PageTokenInvalid, tokens())
	}

	beyond := []badValue{{"beyond the tree", uint64(1 << 40), "at most"}, {"the largest", uint64(math.MaxUint64), "at most"}}
	row(gatev1.AuditService_ListRecords_FullMethodName, &gatev1.ListRecordsRequest{}, "page_size", fault.FieldInvalid, pageSizes(1000))
	row(gatev1.AuditService_ListRecords_FullMethodName, &gatev1.ListRecordsRequest{}, "first_index", fault.CursorUnavailable, beyond)
	inclusion := &gatev1.ProveInclusionRequest{Index: 0, TreeSize: 1}
	row(gatev1.AuditService_ProveInclusion_FullMethodName, inclusion, "tree_size", fault.FieldInvalid, []badValue{{"none", uint64(0), "1"}})
	row(gatev1.AuditService_ProveInclusion_FullMethodName, inclusion, "index", fault.FieldInvalid, []badValue{{"not in it", uint64(1), "less"}, {"the largest", uint64(math.MaxUint64), "less"}})
	row(gatev1.AuditService_ProveInclusion_FullMethodName, inclusion, "tree_size", fault.CursorUnavailable, beyond)
	consistency := &gatev1.ProveConsistencyRequest{OldSize: 1, NewSize: 1}
	row(gatev1.AuditService_ProveConsistency_FullMethodName, consistency, "old_size", fault.FieldInvalid, []badValue{{"none", uint64(0), "1"}})
	row(gatev1.AuditService_ProveConsistency_FullMethodName, consistency, "new_size", fault.FieldInvalid, []badValue{{"none", uint64(0), "1"}})
	row(gatev1.AuditService_ProveConsistency_FullMethodName, consistency, "new_size", fault.CursorUnavailable, beyond)
	return table
}

func fullCheck() *gatev1.CheckRequest {
	c := say("inv-bad", "x")
	c.ConversationId, c.TargetConversationId, c.InputSchema = "c1", "c2", "{}"
	return c
}

func fullDecision(approval string) *gatev1.DecideApprovalRequest {
	in := decideAs(approval, say("inv-pending", "pending"), gatev1.Decision_DECISION_APPROVE, "d-bad")
	in.Remember = &gatev1.Remember{Scope: gatev1.RememberScope_REMEMBER_SCOPE_INPUT, Ttl: durationpb.New(time.Hour)}
	return in
}

func fullDryRun() *gatev1.DryRun {
	input := "{}"
	return &gatev1.DryRun{
		Caller: &gatev1.Caller{Subject: "agent:alice", OnBehalfOf: []string{"human:boss"}}, Operation: "conversation/say",
		InputJson: &input, ConversationId: "c1", TargetConversationId: "c2",
	}
}

var checkFields = []badRequest{
	{field: "request_id", reason: fault.IDMalformed, values: required(ids)},
	{field: "operation", reason: fault.FieldInvalid, values: names},
	{field: "effect", reason: fault.FieldInvalid, values: enums(true)},
	{field: "spec_digest", reason: fault.FieldInvalid, values: digests},
	{field: "input_digest", reason: fault.FieldInvalid, values: digests},
	{field: "input_json", reason: fault.FieldInvalid, values: overBytes(512 << 10)},
	{field: "conversation_id", reason: fault.IDMalformed, values: ids},
	{field: "target_conversation_id", reason: fault.IDMalformed, values: ids},
	{field: "input_schema", reason: fault.FieldInvalid, values: overBytes(64 << 10)},
}

var decisionFields = []badRequest{
	{field: "approval_id", reason: fault.IDMalformed, values: required(ids)},
	{field: "request_id", reason: fault.IDMalformed, values: required(ids)},
	{field: "decision", reason: fault.FieldInvalid, values: enums(false)},
	{field: "input_digest", reason: fault.FieldInvalid, values: digests},
	{field: "note", reason: fault.FieldInvalid, values: over(2000)},
	{field: "amended_input_json", reason: fault.FieldInvalid, values: overBytes(512 << 10)},
	{field: "remember.scope", reason: fault.FieldInvalid, values: enums(false)},
	{field: "remember.ttl", reason: fault.FieldInvalid, values: durations(time.Second, 30*24*time.Hour, false)},
}

var grantFields = []badRequest{
	{field: "grant_id", reason: fault.IDMalformed, values: required(ids)},
	{field: "subject", reason: fault.FieldInvalid, values: subjects},
	{field: "operations", reason: fault.FieldInvalid, values: append(tooMany(100), badValue{"none", repeat(0), "1"})},
	{field: "operations[0]", reason: fault.FieldInvalid, values: []badValue{{"empty", "", "1"}, {"too long", "a/" + strings.Repeat("b", 255), "256"}}},
}

var dryRunFields = []badRequest{
	{field: "caller", reason: fault.FieldInvalid, values: []badValue{{"missing", nil, "required"}}},
	{field: "caller.subject", reason: fault.FieldInvalid, values: subjects},
	{field: "caller.session", reason: fault.FieldInvalid, values: over(128)},
	{field: "caller.on_behalf_of", reason: fault.FieldInvalid, values: tooMany(16)},
	{field: "caller.on_behalf_of[0]", reason: fault.FieldInvalid, values: subjects},
	{field: "operation", reason: fault.FieldInvalid, values: names},
	{field: "effect", reason: fault.FieldInvalid, values: enums(true)},
	{field: "input_json", reason: fault.FieldInvalid, values: overBytes(512 << 10)},
	{field: "conversation_id", reason: fault.IDMalformed, values: ids},
	{field: "target_conversation_id", reason: fault.IDMalformed, values: ids},
}

// in gives the request with a value in the place of a field.
func (b badRequest) in(value any) proto.Message {
	out := proto.Clone(b.request)
	m := out.ProtoReflect()
	path := strings.Split(b.field, ".")
	for i, step := range path {
		name, index, indexed := strings.Cut(strings.TrimSuffix(step, "]"), "[")
		field := m.Descriptor().Fields().ByName(protoreflect.Name(name))
		last := i == len(path)-1
		switch {
		case field == nil && last: // the name of a oneof
		case last && indexed:
			m.Mutable(field).List().Set(0, protoreflect.ValueOf(value))
		case last && value == nil:
			m.Clear(field)
		case last && field.IsList():
			list := m.Mutable(field).List()
			for count := int(value.(repeat)); list.Len() < count; {
				list.Append(list.Get(0))
			}
			list.Truncate(int(value.(repeat)))
		case last && field.Message() != nil:
			m.Set(field, protoreflect.ValueOfMessage(value.(proto.Message).ProtoReflect()))
		case last:
			m.Set(field, protoreflect.ValueOf(value))
		case indexed:
			n, _ := strconv.Atoi(index)
			m = m.Mutable(field).List().Get(n).Message()
		default:
			m = m.Mutable(field).Message()
		}
	}
	return out
}

// caller calls any method as somebody who may.
func (r *rig) caller() func(ctx context.Context, method string, request proto.Message) error {
	everything := identity.Caller{Tenant: "acme", Subject: "human:carol", Scopes: []string{"approval.decide", "approval.cancel", "policy.admin", "audit.read"}}
	own, gate := r.dial(everything), r.dial(registry)
	return func(ctx context.Context, method string, request proto.Message) error {
		service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
		descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + name))
		if err != nil {
			return err
		}
		output, err := protoregistry.GlobalTypes.FindMessageByName(descriptor.(protoreflect.MethodDescriptor).Output().FullName())
		if err != nil {
			return err
		}
		conn, answer := own, output.New().Interface()
		if service == "weir.gate.v1.GateService" {
			if conn = gate; name != "AnnounceOperations" {
				ctx = as(ctx, alice)
			}
		}
		if !descriptor.(protoreflect.MethodDescriptor).IsStreamingServer() {
			return conn.Invoke(ctx, method, request, answer)
		}
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
		if err == nil {
			err = stream.SendMsg(request)
		}
		if err == nil {
			err = stream.CloseSend()
		}
		if err == nil {
			err = stream.RecvMsg(answer)
		}
		return err
	}
}

// stored is the sequence of the newest event in the gate's stream.
func (r *rig) stored() uint64 {
	r.t.Helper()
	j, err := journal.Open(r.t.Context(), r.nats.Connect(), "gate", 1, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		r.t.Fatal(err)
	}
	last, err := j.LastSequence(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return last
}

func TestBadInputIsRefusedByItsFieldAndChangesNothing(t *testing.T) {
	r := newRig(t)
	why := rule("why", gatev1.Verdict_VERDICT_ASK, "conversation/start")
	why.Terms = &gatev1.Terms{NoteRequired: true}
	r.put(tenantPolicy("base", rule("ask", gatev1.Verdict_VERDICT_ASK, "conversation/say"), why))
	noted := r.ask(say2("inv-noted"))
	pending := r.ask(say("inv-pending", "pending"))
	ready := r.ask(say("inv-ready", "ready"))
	r.approve(ready, say("inv-ready", "ready"))
	call := r.caller()
	meshtest.Eventually(t, "lists and the audit log are there", func() bool {
		return call(t.Context(), gatev1.ApprovalService_ListTrusts_FullMethodName, &gatev1.ListTrustsRequest{}) == nil &&
			call(t.Context(), gatev1.AuditService_ListRecords_FullMethodName, &gatev1.ListRecordsRequest{}) == nil
	})
	before := r.stored()
	for _, b := range refusedByField(pending, ready, noted) {
		for _, v := range b.values {
			name := fmt.Sprintf("%s %s %s", b.method[strings.LastIndex(b.method, "/")+1:], b.field, v.name)
			wantField(t, name, call(t.Context(), b.method, b.in(v.value)), b.reason, b.field, v.says)
		}
	}
	if after := r.stored(); after != before {
		t.Errorf("%d events were stored", after-before)
	}
}

// wantField compares a refusal with its reason, its one field and what it says of it.
func wantField(t testing.TB, name string, err error, reason fault.Reason, field, says string) {
	t.Helper()
	e := fault.From(err)
	if err == nil || e.Reason() != reason {
		t.Errorf("%s: %v, want %s", name, err, reason)
		return
	}
	if len(e.Violations()) == 0 {
		t.Errorf("%s: the refusal names no field: %v", name, err)
	}
	said := false
	for _, v := range e.Violations() {
		if v.Field != field || v.Description == "" {
			t.Errorf("%s: the refusal is about %s (%s), want %s", name, v.Field, v.Description, field)
		}
		said = said || strings.Contains(v.Description, says)
	}
	if !said {
		t.Errorf("%s: the refusal says %+v and nothing of %q", name, e.Violations(), says)
	}
}

// Every field that a method takes has its bad values above. A method whose request
// is empty has nothing that could be bad.
func TestEveryFieldOfEveryMethodHasBadInput(t *testing.T) {
	s := grpc.NewServer()
	gatev1.RegisterGateServiceServer(s, &gateServer{})
	gatev1.RegisterApprovalServiceServer(s, &approvalServer{})
	gatev1.RegisterPolicyServiceServer(s, &policyServer{})
	gatev1.RegisterAuditServiceServer(s, &audit.Server{})
	covered := map[string]bool{}
	for _, b := range refusedByField("a", "a", "a") {
		field, _, _ := strings.Cut(b.field, ".")
		field, _, _ = strings.Cut(field, "[")
		covered[b.method+" "+field] = len(b.values) > 0
	}
	for service, info := range s.GetServiceInfo() {
		for _, m := range info.Methods {
			method := "/" + service + "/" + m.Name
			descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + m.Name))
			if err != nil {
				t.Fatal(err)
			}
			fields := descriptor.(protoreflect.MethodDescriptor).Input().Fields()
			for i := range fields.Len() {
				name := string(fields.Get(i).Name())
				if !covered[method+" "+name] && anyValue[name] == "" {
					t.Errorf("%s has no bad input for %s", method, name)
				}
			}
		}
	}
}
