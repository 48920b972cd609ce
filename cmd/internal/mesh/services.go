package mesh

import (
	"context"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"

	"weir/cmd/internal/home"
	"weir/internal/backend"
	"weir/internal/serve"
	"weir/services/conversation"
	"weir/services/gate"
	"weir/services/inbox"
	"weir/services/registry"
)

// services are the Run functions of the four, each with its Config.
func services(data home.Folder, p *ports, redis, nats string, metrics *prometheus.Registry, log *slog.Logger) []func(context.Context) error {
	stores := backend.Config{NATS: nats, Redis: redis, Replicas: 1}
	on := func(listener net.Listener) serve.Config {
		return serve.Config{
			JWKS:     data.JWKS(),
			Audience: home.Audience,
			// Whoever can reach loopback may list methods; the network may not.
			OpenReflection: tcp(listener).IP.IsLoopback(),
			Listener:       listener,
			Registry:       metrics,
			Logger:         log,
		}
	}
	calling := func(listener net.Listener, name string) serve.Config {
		c := on(listener)
		c.Peer = serve.DialConfig{
			TokenFile: data.Token("service-" + name),
			Plaintext: true, // its peers are this very process
		}
		return c
	}
	return []func(context.Context) error{
		func(ctx context.Context) error {
			return gate.Run(ctx, gate.Config{Serve: on(p.gate), Stores: stores, AuditKey: data.AuditKey()})
		},
		func(ctx context.Context) error {
			return registry.Run(ctx, registry.Config{
				Serve: calling(p.registry, "registry"), Stores: stores,
				Gate: p.addresses.Gate, Conversation: p.addresses.Conversation, Inbox: p.addresses.Inbox,
			})
		},
		func(ctx context.Context) error {
			return conversation.Run(ctx, conversation.Config{Serve: on(p.conversation), Stores: stores, Index: data.Search()})
		},
		func(ctx context.Context) error {
			return inbox.Run(ctx, inbox.Config{
				Serve: calling(p.inbox, "inbox"), Stores: stores, Gate: p.addresses.Gate, Conversation: p.addresses.Conversation,
			})
		},
	}
}
