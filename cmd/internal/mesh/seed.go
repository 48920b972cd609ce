package mesh

import (
	"context"
	"fmt"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/serve"

	"weir/cmd/internal/home"
)

// firstGrants let the agents of the ready-made tokens ask for what they need to try weir
// out. A person decides on each all the same.
var firstGrants = []*gatev1.Grant{
	{GrantId: "first-alice", Subject: "agent:alice", Operations: []string{"conversation/*", "dispatch/*", "inbox/*"}},
	{GrantId: "first-bob", Subject: "agent:bob", Operations: []string{"conversation/*", "dispatch/*", "inbox/*"}},
}

// seed puts the first grants of a new journal, as the administrator whose token lies in
// the folder. It is done once: a grant deleted later stays deleted.
func seed(ctx context.Context, data home.Folder, gate string) error {
	if data.Seeded() {
		return nil
	}
	conn, err := serve.Dial(gate, serve.DialConfig{TokenFile: data.Token("admin"), Plaintext: true})
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, grant := range firstGrants {
		if _, err := gatev1.NewPolicyServiceClient(conn).PutGrant(ctx, &gatev1.PutGrantRequest{Grant: grant}); err != nil {
			return fmt.Errorf("first grant %s: %w", grant.GetGrantId(), err)
		}
	}
	return data.MarkSeeded()
}
