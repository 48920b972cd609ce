package identity

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/fault"
)

func TestSubjects(t *testing.T) {
	for subject, want := range map[string]Kind{
		"human:ann":                        Human,
		"agent:Coder-7.b_x":                Agent,
		"service:registry":                 Service,
		"agent:" + strings.Repeat("a", 64): Agent,
		"agent:" + strings.Repeat("a", 65): "",
		"":                                 "",
		"ann":                              "",
		":ann":                             "",
		"human:":                           "",
		"human: ann":                       "",
		" human:ann":                       "",
		"human:ann\n":                      "",
		"Human:ann":                        "",
		"robot:ann":                        "",
		"human:-ann":                       "",
		"human:ann:bob":                    "",
		"human:ann/bob":                    "",
		"human:änn":                        "",
		"human:ann\x00":                    "",
		"human:*":                          "",
	} {
		kind, name, err := ParseSubject(subject)
		if kind != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, %v", subject, kind, err)
		}
		if err == nil && string(kind)+":"+name != subject {
			t.Errorf("%q came back as %q %q", subject, kind, name)
		}
		if err != nil && !fault.Is(err, fault.IDMalformed) {
			t.Errorf("%q: %v", subject, err)
		}
	}
}

func TestWhatNoCredentialMaySay(t *testing.T) {
	if err := agent.check(); err != nil {
		t.Fatal(err)
	}
	if err := registry.check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Caller){
		"no subject":               func(c *Caller) { c.Subject = "" },
		"no tenant":                func(c *Caller) { c.Tenant = "" },
		"agent of any tenant":      func(c *Caller) { c.Tenant = AnyTenant },
		"human of any tenant":      func(c *Caller) { c.Tenant, c.Subject = AnyTenant, "human:ann" },
		"tenant in capitals":       func(c *Caller) { c.Tenant = "Acme" },
		"tenant with a dot":        func(c *Caller) { c.Tenant = "acme.eu" },
		"tenant too long":          func(c *Caller) { c.Tenant = strings.Repeat("a", 64) },
		"session with a space":     func(c *Caller) { c.Session = "a b" },
		"session too long":         func(c *Caller) { c.Session = strings.Repeat("a", 129) },
		"scope with a quote":       func(c *Caller) { c.Scopes = []string{`a"b`} },
		"too many scopes":          func(c *Caller) { c.Scopes = make([]string, maxScopes+1) },
		"chain of a nobody":        func(c *Caller) { c.OnBehalfOf = []string{"human:ann", "bob"} },
		"operation of one part":    func(c *Caller) { c.Operation = "send" },
		"operation in capitals":    func(c *Caller) { c.Operation = "inbox/Send" },
		"operation with a newline": func(c *Caller) { c.Operation = "inbox/send\n" },
		"operation as a pattern":   func(c *Caller) { c.Operation = "inbox/*" },
		"operation too long":       func(c *Caller) { c.Operation = "inbox/" + strings.Repeat("a", 195) },
		"endless chain":            func(c *Caller) { c.OnBehalfOf = make([]string, maxChain+1) },
	} {
		c := agent
		change(&c)
		if c.check() == nil {
			t.Errorf("%s passes", name)
		}
	}
}

// A name is taken whole or not at all: what is accepted holds nothing but the letters
// that are allowed, so no two accepted names can be mistaken for one.
func TestNamesAreNeverFolded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringMatching(`(human|agent|Service|service): ?[a-z.\n-]{0,70}`)).Draw(t, "subject")
		kind, name, err := ParseSubject(s)
		if err != nil {
			return
		}
		if string(kind)+":"+name != s || strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") != "" {
			t.Fatalf("%q accepted as %q %q", s, kind, name)
		}
	})
}
