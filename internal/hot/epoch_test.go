package hot_test

import (
	"sync"
	"testing"
	"time"

	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/meshtest"
)

func nothing() error { return nil }

func wantEpoch(t testing.TB, h *hot.Store, want hot.Epoch) {
	t.Helper()
	if got, err := h.Epoch(t.Context()); err != nil || got != want {
		t.Fatalf("the epoch is %+v, %v; want %+v", got, err, want)
	}
}

func begun(t testing.TB, h *hot.Store, target uint64) hot.Epoch {
	t.Helper()
	epoch, err := h.BeginEpoch(t.Context(), target)
	if err != nil || epoch.ID == "" {
		t.Fatalf("began %+v, %v", epoch, err)
	}
	return epoch
}

func completed(t testing.TB, h *hot.Store, id string) {
	t.Helper()
	if err := h.CompleteEpoch(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

func epochs(t *testing.T, s *server) {
	h, other := s.open(t), s.open(t)
	wantEpoch(t, h, hot.Epoch{})
	wantReason(t, h.Complete(t.Context(), func() error { t.Error("read without an epoch"); return nil }), fault.IndexRebuilding)

	epoch := begun(t, h, 42)
	if epoch.Target != 42 || epoch.Complete {
		t.Fatalf("began %+v", epoch)
	}
	wantEpoch(t, other, epoch)
	if again := begun(t, other, 50); again != epoch {
		t.Fatalf("another replica began %+v", again)
	}
	wantReason(t, h.Complete(t.Context(), nothing), fault.IndexRebuilding)
	completed(t, h, "another") // of an epoch that is over
	wantReason(t, h.Complete(t.Context(), nothing), fault.IndexRebuilding)
	completed(t, h, epoch.ID)
	epoch.Complete = true
	wantEpoch(t, other, epoch)
	read := false
	if err := other.Complete(t.Context(), func() error { read = true; return nil }); err != nil || !read {
		t.Fatalf("complete: %v, read: %v", err, read)
	}
	refused := fault.New(fault.PageTokenInvalid, "")
	wantReason(t, h.Complete(t.Context(), func() error { return refused }), fault.PageTokenInvalid)
	// Each stream has its own.
	wantEpoch(t, s.openAs(t, "test", "another"), hot.Epoch{})
	wantEpoch(t, s.openAs(t, "other", "stream"), hot.Epoch{})
}

func epochRace(t *testing.T, s *server) {
	var got [8]hot.Epoch
	var wg sync.WaitGroup
	for i := range got {
		h := s.open(t)
		wg.Go(func() {
			var err error
			if got[i], err = h.BeginEpoch(t.Context(), uint64(i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, epoch := range got {
		if epoch != got[0] || epoch.ID == "" {
			t.Fatalf("the epochs are %+v", got)
		}
	}
}

func flushEndsEpoch(t *testing.T, s *server) {
	h := s.open(t)
	old := begun(t, h, 1)
	completed(t, h, old.ID)
	s.flush(t)
	wantEpoch(t, h, hot.Epoch{})
	wantReason(t, h.Complete(t.Context(), nothing), fault.IndexRebuilding)
	completed(t, h, old.ID)
	wantEpoch(t, h, hot.Epoch{}) // an old projector can't make one
	if epoch := begun(t, h, 1); epoch.ID == old.ID {
		t.Error("the new epoch has the old one's id")
	}
	completed(t, h, old.ID)
	wantReason(t, h.Complete(t.Context(), nothing), fault.IndexRebuilding)
}

func flushInTheMiddle(t *testing.T, s *server) {
	h := s.open(t)
	epoch := begun(t, h, 1)
	completed(t, h, epoch.ID)
	wantReason(t, h.Complete(t.Context(), func() error { s.flush(t); return nil }), fault.IndexRebuilding)

	completed(t, h, begun(t, h, 1).ID)
	wantReason(t, h.Complete(t.Context(), func() error {
		s.flush(t)
		completed(t, h, begun(t, h, 1).ID) // rebuilt before the read is over
		return nil
	}), fault.IndexRebuilding)
	if err := h.Complete(t.Context(), nothing); err != nil {
		t.Fatal(err)
	}
}

// Redis comes back with yesterday's snapshot, its epoch in it.
func TestARestartedRedisBeginsANewEpoch(t *testing.T) {
	r := meshtest.StartRedis(t)
	s := &server{url: r.URL(), client: client(t, false, r.Addr())}
	h := s.open(t)
	epoch := begun(t, h, 1)
	completed(t, h, epoch.ID)
	wasPut(t, h, key("x"), 1, in(1, "all"), "root=1")
	r.Save()
	r.Kill()
	r.Start()
	meshtest.Eventually(t, "redis is asked again", func() bool { _, err := h.Epoch(t.Context()); return err == nil })
	wantDocument(t, h, key("x"), 1, "root=1") // it is the old snapshot
	wantEpoch(t, h, hot.Epoch{})
	next := begun(t, h, 2)
	if next.ID == epoch.ID || next.Complete {
		t.Fatalf("began %+v", next)
	}
	wantReason(t, h.Complete(t.Context(), nothing), fault.IndexRebuilding)
	// A connection that is only interrupted changes nothing.
	if err := s.client.ClientKillByFilter(t.Context(), "TYPE", "normal").Err(); err != nil {
		t.Fatal(err)
	}
	meshtest.Eventually(t, "redis is asked again", func() bool { got, err := h.Epoch(t.Context()); return err == nil && got == next })
}

func TestWithoutRedis(t *testing.T) {
	r := meshtest.StartRedis(t)
	s := &server{url: r.URL()}
	h := s.open(t)
	wasPut(t, h, key("x"), 1, in(1, "all"), "root=1")
	r.Kill()
	for name, call := range map[string]func() error{
		"read":    func() error { _, err := h.Read(t.Context(), key("x")); return err },
		"fields":  func() error { _, err := h.Read(t.Context(), key("x"), "root"); return err },
		"refresh": func() error { _, err := h.Refresh(t.Context(), key("x"), 1, 2, set("root=2"), in(2)); return err },
		"put":     func() error { return h.Put(t.Context(), key("x"), 2, fields("root=2"), in(2)) },
		"shows":   func() error { _, err := h.Shows(t.Context(), key("x"), 1, false); return err },
		"newest":  func() error { _, err := h.List("acme", "thing", "all").Newest(t.Context(), 0, 1); return err },
		"oldest":  func() error { _, err := h.List("acme", "thing", "all").Oldest(t.Context(), 0, 1); return err },
		"choose": func() error {
			_, _, err := h.Choose(t.Context(), "", h.List("acme", "thing", "all"), h.List("acme", "thing", "b"))
			return err
		},
		"take":     func() error { _, err := h.TakeDue(t.Context(), "thing", noon, noon, 1); return err },
		"postpone": func() error { return h.Postpone(t.Context(), key("x"), noon, noon) },
		"epoch":    func() error { _, err := h.Epoch(t.Context()); return err },
		"complete": func() error { return h.Complete(t.Context(), nothing) },
	} {
		if err := call(); !fault.Is(err, fault.HotUnavailable) {
			t.Errorf("%s: %v, want HOT_UNAVAILABLE", name, err)
		}
	}
	started := time.Now()
	for range 1000 {
		_, err := h.Read(t.Context(), key("x"))
		wantReason(t, err, fault.HotUnavailable)
	}
	if took := time.Since(started); took > 5*time.Second {
		t.Errorf("1000 reads without redis took %v: it is not left alone", took)
	}
	r.Start()
	meshtest.Eventually(t, "the store is used again", func() bool { _, err := h.Read(t.Context(), key("x")); return err == nil })
	wasPut(t, h, key("x"), 2, in(2, "all"), "root=2")
	wantDocument(t, h, key("x"), 2, "root=2")
}
