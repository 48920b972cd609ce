package events

import "testing"

func TestNarrow(t *testing.T) {
	for _, c := range []struct{ subject, gate, inbox string }{
		{">", "weir.gate.>", "weir.inbox.>"},
		{"weir.>", "weir.gate.>", "weir.inbox.>"},
		{"*.>", "weir.gate.>", "weir.inbox.>"},
		{"weir.*.acme.>", "weir.gate.acme.>", "weir.inbox.acme.>"},
		{"weir.gate.>", "weir.gate.>", ""},
		{"weir.gate.acme.approval.a-1", "weir.gate.acme.approval.a-1", ""},
		{"*.inbox.*.dispatch.*", "", "weir.inbox.*.dispatch.*"},
		{"weir.gate", "", ""},
		{"weir", "", ""},
		{"weir.*", "", ""},
		{"weir.orders.>", "", ""},
		{"acme.gate.>", "", ""},
	} {
		for service, want := range map[string]string{"gate": c.gate, "inbox": c.inbox} {
			if got, _ := narrow(c.subject, service); got != want {
				t.Errorf("%s in the stream of %s: %q, want %q", c.subject, service, got, want)
			}
		}
	}
}
