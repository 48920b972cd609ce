package gate

import (
	"slices"
	"strings"
	"testing"

	gatev1 "weir/gen/gate/v1"
	"weir/services/gate/policy"
)

// Each kind of flag has an example that raises it, and nothing harmless does.
func TestEachEscalationIsFlagged(t *testing.T) {
	examples := map[gatev1.FlagKind][]matter{
		gatev1.FlagKind_FLAG_KIND_WIDENS_ACCESS: {
			{Operation: "admin/grants/put"}, {Operation: "x/apply", Input: inspect(`{"rules":[{"verdict":"ALLOW"}]}`)},
		},
		gatev1.FlagKind_FLAG_KIND_WEAKENS_GATE: {
			{Operation: "gate/policy/delete"}, {Operation: "x/configure", Input: inspect(`{"deep":{"require_approval":false}}`)},
		},
		gatev1.FlagKind_FLAG_KIND_ALLOWS_ON_TIMEOUT: {
			{Operation: "x/y", Terms: policy.Terms{OnTimeout: policy.TimeoutAllow}}, {Operation: "x/y", Input: inspect(`{"on_timeout":"ON_TIMEOUT_ALLOW"}`)},
		},
		gatev1.FlagKind_FLAG_KIND_BROAD_AGENT: {
			{Operation: "agent/create", Input: inspect(`{"operations":["crm/**"]}`)}, {Operation: "agents/spawn", Input: inspect(`{"name":"x"}`)},
		},
		gatev1.FlagKind_FLAG_KIND_CREDENTIAL: {
			{Operation: "x/y", Input: inspect(`{"password":"hunter2"}`)},
			{Operation: "x/y", Input: inspect(`["AKIAABCDEFGHIJKLMNOP"]`)},
			{Operation: "x/y", Input: inspect(`{"url":"https://me:secret@host/"}`)},
		},
		gatev1.FlagKind_FLAG_KIND_TARGETS_GATE:  {{Operation: "gate/anything"}, {Operation: "ops/audit-log"}},
		gatev1.FlagKind_FLAG_KIND_SCRIPT_WRITES: {{Operation: "session/run", Input: inspect(`{"script":"weir.call('crm/delete')"}`)}},
		gatev1.FlagKind_FLAG_KIND_FIRST_USE:     {{Operation: "x/y", FirstUse: true}},
	}
	kinds := gatev1.FlagKind_name
	for number := range kinds {
		kind := gatev1.FlagKind(number)
		if kind == gatev1.FlagKind_FLAG_KIND_UNSPECIFIED || kind == gatev1.FlagKind_FLAG_KIND_AMENDED {
			continue
		}
		if len(examples[kind]) == 0 {
			t.Errorf("%v has no example", kind)
		}
		for _, m := range examples[kind] {
			if !slices.ContainsFunc(escalations(m), func(f flag) bool { return f.Kind == kind }) {
				t.Errorf("%s %+v is not flagged as %v: %v", m.Operation, m.Input.leaves, kind, escalations(m))
			}
		}
	}
	harmless := matter{Operation: "crm/notes/add", Input: inspect(`{"text":"the gate is open, allow me","n":5,"agent":"x"}`)}
	if flags := escalations(harmless); len(flags) > 0 {
		t.Errorf("a note is flagged: %v", flags)
	}
}

func inspect(text string) inspected { return inspectInput(&text) }

func TestWhatLooksLikeACredentialIsNeverShown(t *testing.T) {
	secrets := []string{"hunter2secret", "ghp_abcdefghijklmnopqrstuvwxyz0123456789", "sk-abcdefghijklmnopqrstuvwx"}
	seen := inspect(`{"a":{"api_key":"` + secrets[0] + `"},"list":["fine","` + secrets[1] + `"],"note":"use ` + secrets[2] + `","n":9007199254740992}`)
	for _, s := range secrets {
		if strings.Contains(*seen.shown, s) {
			t.Errorf("%s is shown in %s", s, *seen.shown)
		}
		for _, f := range escalations(matter{Operation: "x/y", Input: seen}) {
			if strings.Contains(f.Detail, s) {
				t.Errorf("%s is told in %+v", s, f)
			}
		}
	}
	if got := strings.Join(seen.credentials, " "); got != "/a/api_key /list/1 /note" {
		t.Errorf("found at %s", got)
	}
	if !strings.Contains(*seen.shown, `"fine"`) || !strings.Contains(*seen.shown, "9007199254740992") {
		t.Errorf("what is none is gone from %s", *seen.shown)
	}
	plain := `{"b": 1, "a": "x"}`
	if got := inspectInput(&plain); *got.shown != plain {
		t.Errorf("an input without any is shown as %s", *got.shown)
	}
}

func TestWhatStandsUnderASecretsKeyIsMaskedWhateverItIs(t *testing.T) {
	for _, text := range []string{
		`{"password":12345678}`, `{"password":{"value":"hunter2"}}`, `{"dbPassword":"hunter2"}`, `{"headers":{"Authorization":"Basic hunter2"}}`,
		`{"cookie":"hunter2"}`, `{"token":["hunter2"]}`, `{"ghp_abcdefghijklmnopqrstuvwxyz0123456789":1}`,
	} {
		seen := inspect(text)
		for _, secret := range []string{"12345678", "hunter2", "ghp_"} {
			if strings.Contains(*seen.shown+strings.Join(seen.credentials, " "), secret) {
				t.Errorf("%s is shown as %s, found at %v", text, *seen.shown, seen.credentials)
			}
		}
		if len(seen.credentials) == 0 {
			t.Errorf("nothing is found in %s", text)
		}
	}
	if seen := inspect(`{"page_tokens":"x","secretary":"Ann","tokens_used":5}`); len(seen.credentials) > 0 {
		t.Errorf("found in what is none: %v", seen.credentials)
	}
}
