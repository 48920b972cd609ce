package conversation

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

// stream is a tail as its client sees it.
type stream struct {
	t testing.TB
	grpc.ServerStreamingClient[conversationv1.TailMessagesResponse]
}

// tail tails a conversation, from behind a position or, below 0, from now on. It
// comes back when the tail has begun.
func (m *mesh) tail(ctx context.Context, r replica, conversation string, after int64) stream {
	m.t.Helper()
	req := &conversationv1.TailMessagesRequest{ConversationId: conversation}
	if after >= 0 {
		req.After = proto.Int64(after)
	}
	s, err := r.messages.TailMessages(ctx, req)
	if err != nil {
		m.t.Fatal(err)
	}
	return stream{m.t, s}
}

// next gives what comes next.
func (s stream) next() *conversationv1.TailMessagesResponse {
	s.t.Helper()
	got, err := s.Recv()
	if err != nil {
		s.t.Fatalf("the tail ended: %v", err)
	}
	return got
}

// wantMessages says which positions come next.
func (s stream) wantMessages(positions ...int64) {
	s.t.Helper()
	for _, want := range positions {
		if got := s.next(); got.GetMessage().GetPosition() != want {
			s.t.Fatalf("got %v, want message %d", got, want)
		}
	}
}

// wantEnd says how the tail ends, whatever comes before.
func (s stream) wantEnd(want fault.Reason) {
	s.t.Helper()
	for {
		if got, err := s.Recv(); err != nil {
			wantReason(s.t, err, want)
			return
		} else if got.GetMessage() != nil {
			s.t.Fatalf("got %v, want the end", got)
		}
	}
}

// inside runs the parts of a replica without its server.
func (m *mesh) inside() *service {
	m.t.Helper()
	cfg := m.stores()
	cfg.Erasable = true
	stores, err := backend.Open(m.t.Context(), serviceName, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(stores.Close)
	s, err := newService(stores, Config{})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(s.close)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.feeds.run(ctx, stores.Journal) }()
	m.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			m.t.Errorf("the stream is not followed: %v", err)
		}
	})
	return s
}

func TestATailBeginsWhereItIsTold(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	for i := range 3 {
		m.say(r, "c", "m"+strconv.Itoa(i+1), "words")
	}
	m.tail(m.as(ann), r, "c", 0).wantMessages(1, 2, 3)
	m.tail(m.as(ann), r, "c", 2).wantMessages(3)
	s := m.tail(m.as(ann), r, "c", 4)
	_, err := s.Recv()
	wantReason(t, err, fault.CursorUnavailable)
	for i := range 20 {
		// However far the feed that is there has got, what was acknowledged is there.
		said := m.say(r, "c", "n"+strconv.Itoa(i), "words")
		seen := m.tail(m.as(bob), r, "c", said.GetPosition())
		first := m.tail(m.as(bob), r, "c", said.GetPosition()-1)
		first.wantMessages(said.GetPosition())
		last := m.say(r, "c", "o"+strconv.Itoa(i), "words")
		seen.wantMessages(last.GetPosition())
		first.wantMessages(last.GetPosition())
	}
}

func TestATailFromNowOnHasNothingOfThePast(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	m.say(r, "c", "m1", "words")
	s := m.tail(m.as(ann), r, "c", -1)
	// Where nothing was said, what an author writes comes first.
	meshtest.Eventually(t, "the tail has begun", func() bool {
		_, err := r.messages.AppendDelta(m.as(bob), &conversationv1.AppendDeltaRequest{ConversationId: "c", MessageId: "m2", Text: "wri"})
		return err == nil
	})
	if got := s.next(); got.GetDelta().GetText() != "wri" {
		t.Fatalf("got %v", got)
	}
	m.say(r, "c", "m2", "written")
	s.wantMessages(2)
}

func TestATailOfAForkHasTheSharedPastAndNothingOfWhatFollowedThere(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	m.say(r, "c", "m1", "one")
	m.say(r, "c", "m2", "two")
	if _, err := r.conversations.ForkConversation(m.as(bob), &conversationv1.ForkConversationRequest{
		ParentConversationId: "c", Position: 1, ConversationId: "f",
	}); err != nil {
		t.Fatal(err)
	}
	s := m.tail(m.as(bob), r, "f", 0)
	if got := s.next().GetMessage(); got.GetMessageId() != "m1" || got.GetOriginConversationId() != "c" || got.GetConversationId() != "f" {
		t.Fatalf("got %v", got)
	}
	m.say(r, "c", "m3", "three")
	if _, err := r.messages.AppendMessage(m.as(bob), &conversationv1.AppendMessageRequest{
		ConversationId: "f", MessageId: "f2", ReplyTo: "m1", Parts: text("in the fork"),
	}); err != nil {
		t.Fatal(err)
	}
	if got := s.next().GetMessage(); got.GetMessageId() != "f2" || got.GetPosition() != 2 {
		t.Fatalf("got %v", got)
	}
}

func TestATailEndsWithTheRightToRead(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	m.say(r, "c", "m1", "words")
	leaves, stays := m.tail(m.as(bob), r, "c", 0), m.tail(m.as(ann), r, "c", 0)
	leaves.wantMessages(1)
	stays.wantMessages(1)
	stranger := m.tail(m.as(eve), r, "c", 0)
	stranger.wantEnd(fault.ConversationNotFound)
	if _, err := r.conversations.UpdateConversation(m.as(ann), &conversationv1.UpdateConversationRequest{
		ConversationId: "c", UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"participants"}},
	}); err != nil {
		t.Fatal(err)
	}
	m.say(r, "c", "m2", "behind bob's back")
	leaves.wantEnd(fault.ConversationNotFound)
	stays.wantMessages(2)
	if _, err := r.retention.DeleteConversation(m.eraser(), &conversationv1.DeleteConversationRequest{ConversationId: "c"}); err != nil {
		t.Fatal(err)
	}
	stays.wantEnd(fault.ConversationNotFound)
}

func TestAnApproversTailEndsWithTheApproval(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	m.say(r, "c", "m1", "words")
	teller := hear(m).teller
	note := &conversationv1.ApprovalNote{ApprovalId: "a1", Operation: "files/remove", Requester: ann, State: pending, ApproverScopes: []string{"finance.approve"}}
	if shown, err := teller.show(t.Context(), "acme", "c", ann, askNote(note)); err != nil || !shown {
		t.Fatalf("shown %v, %v", shown, err)
	}
	approver := m.tail(m.holding("acme", eve, scopeRead, scopeDecide, "finance.approve"), r, "c", 0)
	approver.wantMessages(1, 2)
	end := &conversationv1.ApprovalNote{ApprovalId: "a1", Operation: "files/remove", Requester: ann, State: "APPROVED", DecidedBy: eve}
	if shown, err := teller.show(t.Context(), "acme", "c", "", answerNote(end)); err != nil || !shown {
		t.Fatalf("shown %v, %v", shown, err)
	}
	approver.wantEnd(fault.ConversationNotFound)
}

func TestWhatIsRedactedIsNotToldAnyMore(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	live := m.tail(m.as(bob), r, "c", 0)
	m.say(r, "c", "m1", "a secret")
	live.wantMessages(1)
	if _, err := r.messages.RedactMessage(m.as(ann), &conversationv1.RedactMessageRequest{ConversationId: "c", MessageId: "m1"}); err != nil {
		t.Fatal(err)
	}
	late := m.tail(m.as(bob), r, "c", 0)
	if got := late.next().GetMessage(); got.GetErasure() != conversationv1.Erasure_ERASURE_REDACTED || len(got.GetParts()) != 0 {
		t.Fatalf("got %v", got)
	}
	m.say(r, "c", "m2", "words")
	live.wantMessages(2)
	late.wantMessages(2)
}

func TestTailsOfOneReplicaHearOfAnother(t *testing.T) {
	m := newMesh(t)
	a, b := m.start(), m.start()
	m.create(a, "c")
	s := m.tail(m.as(bob), b, "c", 0)
	for i := range 10 {
		m.say(a, "c", "m"+strconv.Itoa(i), "words")
		s.wantMessages(int64(i) + 1)
	}
}

func TestATailOutlivesNATSAndRedis(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	m.say(r, "c", "m1", "words")
	s := m.tail(m.as(bob), r, "c", 0)
	s.wantMessages(1)
	m.nats.Stop()
	m.nats.Start()
	said := func(id string) {
		t.Helper()
		meshtest.Eventually(t, id+" is said", func() bool {
			_, err := m.trySay(r, "c", id, "words")
			return err == nil
		})
	}
	said("m2")
	s.wantMessages(2)
	m.redis.Kill()
	said("m3")
	s.wantMessages(3)
	late := m.tail(m.as(bob), r, "c", 0)
	late.wantMessages(1, 2, 3)
	m.redis.Start()
	said("m4")
	s.wantMessages(4)
	late.wantMessages(4)
}

func TestTailsAreSentElsewhereWhenAReplicaStops(t *testing.T) {
	m := newMesh(t)
	var addr string
	r := m.start(func(cfg *Config) { addr = cfg.Serve.Listener.Addr().String() })
	m.create(r, "c")
	m.say(r, "c", "m1", "words")
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	s := m.tail(m.as(bob), replica{messages: conversationv1.NewMessageServiceClient(conn)}, "c", 0)
	s.wantMessages(1)
	r.stop()
	s.wantEnd(fault.ShuttingDown)
}

// hasty serves tails with little patience.
type hasty struct {
	conversationv1.UnimplementedMessageServiceServer
	service *service
	ended   chan error
}

func (h hasty) TailMessages(req *conversationv1.TailMessagesRequest, stream grpc.ServerStreamingServer[conversationv1.TailMessagesResponse]) error {
	t := &tail{
		history: h.service.history, feeds: h.service.feeds,
		key:    journal.Key{Tenant: "acme", Kind: kindName, ID: req.GetConversationId()},
		caller: identity.Caller{Tenant: "acme", Subject: ann, Scopes: []string{scopeRead}},
		send:   stream.Send, patience: 200 * time.Millisecond, quiet: time.Minute,
	}
	err := t.run(stream.Context(), req.After)
	h.ended <- err
	return err
}

// A reader that stops reading: the windows of its connection fill up, and what the
// server holds for it is one batch.
func TestAReaderThatStopsIsEndedWithItsPlaceAndGoesOnThere(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	const messages = 100
	for i := range messages {
		m.say(r, "c", "m"+strconv.Itoa(i+1), strings.Repeat("long words ", 4000))
	}
	server := grpc.NewServer()
	h := hasty{service: m.inside(), ended: make(chan error, 1)}
	conversationv1.RegisterMessageServiceServer(server, h)
	conn := meshtest.Loopback(t, server)
	slow := replica{messages: conversationv1.NewMessageServiceClient(conn)}
	s := m.tail(t.Context(), slow, "c", 0)
	wantReason(t, <-h.ended, fault.ReaderTooSlow)
	// It reads on after all: what was on its way, and then where to go on.
	got := int64(0)
	for {
		response, err := s.Recv()
		if err != nil {
			wantReason(t, err, fault.ReaderTooSlow)
			if after := fault.From(err).Metadata("after"); after != strconv.FormatInt(got, 10) {
				t.Fatalf("it has %d, and is told to go on behind %s", got, after)
			}
			break
		}
		if got++; response.GetMessage().GetPosition() != got {
			t.Fatalf("got %v, want message %d", response, got)
		}
	}
	if got == 0 || got > messages/2 {
		t.Fatalf("%d of %d messages were on their way", got, messages)
	}
	rest := m.tail(t.Context(), slow, "c", got)
	for position := got + 1; position <= messages; position++ {
		rest.wantMessages(position)
	}
}

func TestTailsLeaveNothingBehind(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	m.say(r, "c", "m1", "words")
	s := m.inside()
	key := journal.Key{Tenant: "acme", Kind: kindName, ID: "c"}
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error)
	const tails = 50
	got := make(chan int64, tails)
	for range tails {
		tail := &tail{
			history: s.history, feeds: s.feeds, key: key, patience: time.Minute, quiet: time.Minute,
			caller: identity.Caller{Tenant: "acme", Subject: ann, Scopes: []string{scopeRead}},
			send: func(r *conversationv1.TailMessagesResponse) error {
				got <- r.GetMessage().GetPosition()
				return nil
			},
		}
		go func() { ended <- tail.run(ctx, proto.Int64(0)) }()
	}
	for range tails {
		if position := <-got; position != 1 {
			t.Fatalf("got position %d", position)
		}
	}
	leave()
	for range tails {
		wantReason(t, <-ended, fault.Cancelled)
	}
	s.feeds.mu.Lock()
	defer s.feeds.mu.Unlock()
	if s.feeds.tails != 0 || len(s.feeds.byKey) != 0 {
		t.Fatalf("%d tails and %d feeds are left", s.feeds.tails, len(s.feeds.byKey))
	}
}

func TestTailsOfOneReplicaAreLimited(t *testing.T) {
	f := newFeeds(nil, nil, nil, nil, slog.New(slog.DiscardHandler))
	f.tails = maxTails
	_, _, err := f.open(journal.Key{Tenant: "acme", Kind: kindName, ID: "c"})
	wantReason(t, err, fault.LimitReached)
}

func TestOnlyWhatIsInARowIsKeptOfTheNewest(t *testing.T) {
	f := &feed{changed: make(chan struct{})}
	kept := func() (positions []int64) {
		for _, r := range f.recent {
			positions = append(positions, r.GetMessage().GetPosition())
		}
		return positions
	}
	keep := func(position int64, bytes int) {
		f.keep(&conversationv1.Message{Position: position, Parts: text(strings.Repeat("x", bytes))}, time.Now())
	}
	keep(4, 1)
	keep(5, 1)
	if got := kept(); !slices.Equal(got, []int64{4, 5}) || len(f.since(3)) != 0 || len(f.since(5)) != 1 || len(f.since(6)) != 0 {
		t.Fatalf("kept %v", got)
	}
	keep(9, 1) // the stream lacks what was between them
	if got := kept(); !slices.Equal(got, []int64{9}) || f.head != 9 {
		t.Fatalf("kept %v", got)
	}
	for position := int64(10); position < 300; position++ {
		keep(position, 100)
	}
	if got := kept(); len(got) != recentMessages || got[0] != 300-recentMessages {
		t.Fatalf("kept %v", got)
	}
	for position := int64(300); position < 320; position++ {
		keep(position, recentBytes/4)
	}
	if got := kept(); len(got) != 3 || f.bytes > recentBytes {
		t.Fatalf("kept %v, of %d bytes", got, f.bytes)
	}
	keep(320, 2*recentBytes)
	keep(321, 1)
	total := 0
	for _, r := range f.recent {
		total += proto.Size(r)
	}
	if got := kept(); len(got) != 1 || f.bytes != total {
		t.Fatalf("kept %v, said to be of %d bytes and of %d", got, f.bytes, total)
	}
	f.rest(time.Now().Add(time.Minute), keepaliveEvery)
	if got := kept(); len(got) != 0 || f.head != 321 {
		t.Fatalf("kept %v", got)
	}
}
