package home

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"weir/internal/identity"
)

// Audience is whom tokens are meant for: the services' default.
const Audience = "weir"

// Tenant is the one that the ready-made tokens of people and agents belong to.
const Tenant = "demo"

// lifetime of a ready-made token. A mesh renews them at its start and daily, so it is how
// long a copy that got lost stays good.
const lifetime = 30 * 24 * time.Hour

// What the roles may do. All may reflect: where that isn't open to everybody, grpcurl
// needs it before any other call.
var (
	AgentScopes = []string{
		"operation.invoke", "operation.read", "approval.read", "approval.cancel",
		"conversation.read", "inbox.claim", "dispatch.write", "dispatch.report", "weir.reflect",
	}
	ApproverScopes = []string{"approval.decide", "approval.read", "conversation.read", "weir.reflect"}
	AdminScopes    = []string{"policy.admin", "policy.read", "weir.reflect"}
	AuditorScopes  = []string{"audit.read", "policy.read", "weir.reflect"}
	OperatorScopes = []string{
		"inbox.operate", "inbox.enqueue", "conversation.read", "conversation.write", "dispatch.read", "dispatch.write",
		"dispatch.send", "operation.read", "weir.reflect",
	}
	// Archivists read every conversation of their tenant, and may erase.
	ArchivistScopes = []string{
		"conversation.admin", "conversation.erase", "conversation.read", "conversation.write", "weir.reflect",
	}
)

// People are the names of the ready-made tokens and whom each one proves.
var People = map[string]identity.Caller{
	"agent":     {Tenant: Tenant, Subject: "agent:alice", Scopes: AgentScopes},
	"worker":    {Tenant: Tenant, Subject: "agent:bob", Scopes: AgentScopes},
	"approver":  {Tenant: Tenant, Subject: "human:carol", Scopes: ApproverScopes},
	"admin":     {Tenant: Tenant, Subject: "human:ann", Scopes: AdminScopes},
	"auditor":   {Tenant: Tenant, Subject: "human:ida", Scopes: AuditorScopes},
	"operator":  {Tenant: Tenant, Subject: "human:omar", Scopes: OperatorScopes},
	"archivist": {Tenant: Tenant, Subject: "human:rita", Scopes: ArchivistScopes},
}

// Services are the tokens that the services call each other with. They belong to no
// tenant. Those that call nobody have no scope yet.
var Services = map[string]identity.Caller{
	"service-gate": service("gate"),
	"service-registry": service("registry",
		"gate.check", "conversation.read", "conversation.write", "inbox.enqueue", "dispatch.send"),
	"service-conversation": service("conversation"),
	"service-inbox":        service("inbox", "gate.check", "conversation.read", "conversation.write"),
}

func service(name string, scopes ...string) identity.Caller {
	return identity.Caller{Tenant: identity.AnyTenant, Subject: "service:" + name, Scopes: scopes}
}

// Renew signs all tokens anew, with a key that is made where there is none, and puts
// the public key where services read it.
func (f Folder) Renew() error {
	signer, err := f.key()
	if err != nil {
		return err
	}
	if err := signer.WriteJWKS(f.JWKS()); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	if err := f.renewAuditKey(); err != nil {
		return err
	}
	folder := f.path("tokens")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	for _, tokens := range []map[string]identity.Caller{People, Services} {
		for name, caller := range tokens {
			token, err := signer.Issue(caller, Audience, lifetime)
			if err != nil {
				return fmt.Errorf("token of %s: %w", caller.Subject, err)
			}
			if err := replace(f.Token(name), token); err != nil {
				return fmt.Errorf("data folder: %w", err)
			}
		}
	}
	return nil
}

// replace writes a secret so that a reader sees the old one or the new one, whole.
// os.CreateTemp makes files that are their owner's alone.
func replace(path, secret string) error {
	next, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(next.Name()) // fails once it was renamed
	_, err = fmt.Fprintln(next, secret)
	if closing := next.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return err
	}
	return os.Rename(next.Name(), path)
}
