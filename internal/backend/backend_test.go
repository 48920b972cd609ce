package backend_test

import (
	"io"
	"log/slog"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go/jetstream"

	"weir/internal/backend"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

func TestAServiceChoosesWhetherItsEventsCanBeErased(t *testing.T) {
	n := meshtest.StartNATS(t)
	js, err := jetstream.New(n.Connect())
	if err != nil {
		t.Fatal(err)
	}
	for service, erasable := range map[string]bool{"keeps": false, "erases": true} {
		config := backend.Config{NATS: n.URL(), Redis: "redis://127.0.0.1:1", Replicas: 1, Erasable: erasable}
		b, err := backend.Open(t.Context(), service, config, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		b.Close()
		stream, err := js.Stream(t.Context(), journal.StreamName(service))
		if err != nil {
			t.Fatal(err)
		}
		if denies := stream.CachedInfo().Config.DenyDelete; denies == erasable {
			t.Errorf("%s: its stream denies deletion: %v", service, denies)
		}
		// The other kind is refused at the start.
		config.Erasable = !erasable
		if b, err := backend.Open(t.Context(), service, config, slog.New(slog.DiscardHandler)); err == nil {
			b.Close()
			t.Errorf("%s: it opened the other way too", service)
		}
	}
}

func TestErasableIsNoSettingOfOperators(t *testing.T) {
	parser, err := kong.New(&backend.Config{}, kong.Writers(io.Discard, io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"--erasable"}); err == nil {
		t.Error("a flag chooses it")
	}
}
