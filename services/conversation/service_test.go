package conversation

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/internal/meshtest"
	"weir/internal/serve"
)

func TestEveryMethodHasARowInTheScopeTable(t *testing.T) {
	server := grpc.NewServer()
	(&service{history: &history{}, groups: &groups{}}).register(server)
	if missing := identity.Methods.Missing(server); len(missing) > 0 {
		t.Fatalf("no row for %v", missing)
	}
}

func TestFlags(t *testing.T) {
	parse := func(args ...string) (Config, error) {
		var cfg Config
		parser, err := kong.New(&cfg, kong.Vars{"listen": "127.0.0.1:7003"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = parser.Parse(args)
		return cfg, err
	}
	cfg, err := parse("--jwks=keys.json")
	if err != nil || cfg.Serve.Listen != "127.0.0.1:7003" || cfg.Serve.JWKS != "keys.json" || cfg.Stores.Replicas != 1 {
		t.Fatalf("got %+v, %v", cfg, err)
	}
	for flag, args := range map[string][]string{
		"--jwks":     {},
		"--replicas": {"--jwks=keys.json", "--replicas=2"},
		"--listen":   {"--jwks=keys.json", "--listen=nowhere"},
	} {
		if _, err := parse(args...); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%v: %v, want an error that names %s", args, err, flag)
		}
	}
}

func TestRunToldToStopWhileItWaitsForNATSIsNoFailure(t *testing.T) {
	_, jwks := newIssuer(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- Run(ctx, Config{
			Serve:  serve.Config{Listen: "127.0.0.1:0", JWKS: jwks, Logger: slog.New(slog.DiscardHandler)},
			Stores: backend.Config{NATS: "nats://127.0.0.1:1", Redis: "redis://127.0.0.1:1", Replicas: 1},
		})
	}()
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestAConversationFromItsStartToItsLastPage(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	created := m.create(r, "c")
	wantEqual(t, "the new conversation", created, &conversationv1.Conversation{
		ConversationId: "c", Title: "plans", Owner: ann, Participants: []string{bob},
		State:      conversationv1.ConversationState_CONVERSATION_STATE_ACTIVE,
		CreateTime: created.GetCreateTime(), UpdateTime: created.GetCreateTime(),
	})
	if created.GetCreateTime().AsTime().Before(time.Now().Add(-time.Minute)) {
		t.Fatalf("created at %v", created.GetCreateTime())
	}
	messages, next, err := m.page(r, &conversationv1.ListMessagesRequest{ConversationId: "c"})
	if err != nil || len(messages) != 0 || next != 0 {
		t.Fatalf("an empty conversation lists %v, %d, %v", messages, next, err)
	}

	first := m.say(r, "c", "m1", "hello")
	wantEqual(t, "what ann said", first, &conversationv1.Message{
		ConversationId: "c", MessageId: "m1", Position: 1, Author: ann, Parts: text("hello"), CreateTime: first.GetCreateTime(),
	})
	resp, err := r.messages.AppendMessage(m.as(bob), &conversationv1.AppendMessageRequest{
		ConversationId: "c", MessageId: "m2", Parts: data(`{"a": [1, 2]}`), To: []string{ann}, ReplyTo: "m1", ExpectedHead: proto.Int64(1),
	})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "what bob said", resp.GetMessage(), &conversationv1.Message{
		ConversationId: "c", MessageId: "m2", Position: 2, Author: bob, Parts: data(`{"a": [1, 2]}`),
		To: []string{ann}, Addressed: []string{ann}, ReplyTo: "m1", CreateTime: resp.GetMessage().GetCreateTime(),
	})

	got, err := r.messages.GetMessage(m.as(bob), &conversationv1.GetMessageRequest{ConversationId: "c", MessageId: "m1"})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "m1", got.GetMessage(), first)
	all := m.all(r, "c", 10, conversationv1.Order_ORDER_UNSPECIFIED)
	if len(all) != 2 {
		t.Fatalf("listed %v", all)
	}
	wantEqual(t, "the first listed", all[0], first)
	wantEqual(t, "the second listed", all[1], resp.GetMessage())
	if c := m.get(r, "c"); c.GetHead() != 2 || !proto.Equal(c.GetUpdateTime(), all[1].GetCreateTime()) {
		t.Fatalf("the conversation is %v", c)
	}
	_, err = r.messages.GetMessage(m.as(ann), &conversationv1.GetMessageRequest{ConversationId: "c", MessageId: "m3"})
	wantReason(t, err, fault.MessageNotFound)
}

func TestRetriesConvergeAlsoAfterRedisLostAll(t *testing.T) {
	m := newMesh(t)
	a, b := m.start(), m.start()
	created := m.create(a, "c")
	first := m.say(a, "c", "m1", "hello")
	second := m.say(b, "c", "m2", "more")

	retried := func() {
		t.Helper()
		for _, r := range []replica{a, b, m.start()} {
			wantEqual(t, "m1 again", m.say(r, "c", "m1", "hello"), first)
			wantEqual(t, "m2 again", m.say(r, "c", "m2", "more"), second)
			_, err := m.trySay(r, "c", "m1", "hello!")
			wantReason(t, err, fault.IdempotencyMismatch)
			_, err = r.messages.AppendMessage(m.as(bob), &conversationv1.AppendMessageRequest{ConversationId: "c", MessageId: "m1", Parts: text("hello")})
			wantReason(t, err, fault.IdempotencyMismatch)

			again := m.create(r, "c")
			if again.GetHead() != 2 || !proto.Equal(again.GetCreateTime(), created.GetCreateTime()) {
				t.Fatalf("created again: %v", again)
			}
			_, err = r.conversations.CreateConversation(m.as(ann), &conversationv1.CreateConversationRequest{ConversationId: "c", Title: "plans"})
			wantReason(t, err, fault.IdempotencyMismatch)
		}
	}
	retried()
	m.redis.Flush()
	retried()
	for _, r := range []replica{a, b} {
		if got := m.ids(r, "c"); !slices.Equal(got, []string{"m1", "m2"}) {
			t.Fatalf("listed %v", got)
		}
	}
}

func TestWithoutRedisConversationsGoOnFromTheJournal(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	first := m.say(r, "c", "m1", "hello")
	m.redis.Kill()

	second := m.say(r, "c", "m2", "more")
	wantEqual(t, "m1 again", m.say(r, "c", "m1", "hello"), first)
	all := m.all(r, "c", 1, conversationv1.Order_ORDER_NEWEST_FIRST)
	if len(all) != 2 {
		t.Fatalf("listed %v", all)
	}
	wantEqual(t, "the newest", all[0], second)
}

func TestTheHeadThatWasSeenGuardsAnAppend(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	say := func(id string, head int64) error {
		_, err := r.messages.AppendMessage(m.as(ann), &conversationv1.AppendMessageRequest{
			ConversationId: "c", MessageId: id, Parts: text(id), ExpectedHead: &head,
		})
		return err
	}
	for id, head := range []int64{0, 1, 2} {
		if err := say(fmt.Sprint("m", id), head); err != nil {
			t.Fatal(err)
		}
	}
	for _, head := range []int64{0, 2, 4} {
		err := say("late", head)
		wantReason(t, err, fault.HeadMoved)
		if got := fault.From(err).Metadata("head"); got != "3" {
			t.Fatalf("the refusal names head %q", got)
		}
	}
	if err := say("m0", 0); err != nil {
		t.Fatalf("a retry: %v", err)
	}
	wantReason(t, say("negative", -1), fault.FieldInvalid)
}

func TestRacingAppendsFromTwoReplicasAllLandInOneOrder(t *testing.T) {
	m := newMesh(t)
	replicas := []replica{m.start(), m.start()}
	m.create(replicas[0], "c")
	const writers, each = 6, 10
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("m-%d-%d", w, i)
				for {
					_, err := m.trySay(replicas[(w+i)%2], "c", id, id)
					if fault.Is(err, fault.Contention) {
						continue // as a client does
					}
					if err != nil {
						t.Errorf("say %s: %v", id, err)
					}
					break
				}
			}
		})
	}
	wg.Wait()
	for _, r := range replicas {
		seen := map[string]bool{}
		for i, said := range m.all(r, "c", 50, conversationv1.Order_ORDER_UNSPECIFIED) {
			seen[said.GetMessageId()] = true
			if said.GetPosition() != int64(i+1) || said.GetParts()[0].GetText() != said.GetMessageId() {
				t.Fatalf("message %d is %v", i+1, said)
			}
		}
		if len(seen) != writers*each {
			t.Fatalf("%d messages are there, want %d", len(seen), writers*each)
		}
	}
}

func TestPagesHaveExactEdgesBothWays(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	const n = 2*runLength + 5
	for i := range n {
		m.say(r, "c", fmt.Sprint("m", i+1), "hello")
	}
	upTo := func(first, last int64) (all []int64) {
		for p := first; p <= last; p++ {
			all = append(all, p)
		}
		return all
	}
	down := func(all []int64) []int64 { slices.Reverse(all); return all }
	oldest, newest := conversationv1.Order_ORDER_OLDEST_FIRST, conversationv1.Order_ORDER_NEWEST_FIRST

	check := func(t *testing.T) {
		for _, size := range []int32{1000, n, n - 1, runLength, 50} {
			if got := positions(m.all(r, "c", size, oldest)); !slices.Equal(got, upTo(1, n)) {
				t.Fatalf("forward by %d: %v", size, got)
			}
			if got := positions(m.all(r, "c", size, newest)); !slices.Equal(got, down(upTo(1, n))) {
				t.Fatalf("backward by %d: %v", size, got)
			}
		}
		for _, c := range []struct {
			order conversationv1.Order
			size  int32
			from  int64
			want  []int64
			next  int64
		}{
			{oldest, 0, 0, upTo(1, 100), 101},
			{conversationv1.Order_ORDER_UNSPECIFIED, 1, 0, upTo(1, 1), 2},
			{oldest, 2, runLength, upTo(runLength, runLength+1), runLength + 2},
			{oldest, 2, runLength + 1, upTo(runLength+1, runLength+2), runLength + 3},
			{oldest, 3, n - 2, upTo(n-2, n), 0},
			{oldest, 3, n - 3, upTo(n-3, n-1), n},
			{oldest, 3, n, upTo(n, n), 0},
			{newest, 0, 0, down(upTo(n-99, n)), n - 100},
			{newest, 1, n, upTo(n, n), n - 1},
			{newest, 2, runLength + 1, down(upTo(runLength, runLength+1)), runLength - 1},
			{newest, 3, 3, down(upTo(1, 3)), 0},
			{newest, 3, 4, down(upTo(2, 4)), 1},
			{newest, 3, 1, upTo(1, 1), 0},
		} {
			req := &conversationv1.ListMessagesRequest{ConversationId: "c", Order: c.order, PageSize: c.size}
			if c.from != 0 {
				req.From = &c.from
			}
			messages, next, err := m.page(r, req)
			if err != nil || !slices.Equal(positions(messages), c.want) || next != c.next {
				t.Errorf("%v: %v, next %d, %v; want %v, next %d", req, positions(messages), next, err, c.want, c.next)
			}
		}
		for _, order := range []conversationv1.Order{oldest, newest} {
			for _, from := range []int64{n + 1, n + 2, 1 << 40} {
				_, _, err := m.page(r, &conversationv1.ListMessagesRequest{ConversationId: "c", Order: order, From: &from})
				wantReason(t, err, fault.CursorUnavailable)
			}
			for _, from := range []int64{0, -1} {
				_, _, err := m.page(r, &conversationv1.ListMessagesRequest{ConversationId: "c", Order: order, From: &from})
				wantReason(t, err, fault.FieldInvalid)
			}
		}
		_, _, err := m.page(r, &conversationv1.ListMessagesRequest{ConversationId: "c", PageSize: 1001})
		wantReason(t, err, fault.FieldInvalid)
	}
	check(t)
	m.redis.Flush()
	check(t)
}

// Ten messages of the largest size are more than a page takes.
func TestAPageEndsAtTwoMebibytes(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	large := strings.Repeat("x", maxMessageBytes)
	for i := range 10 {
		m.say(r, "c", fmt.Sprint("m", i), large)
	}
	for _, c := range []struct {
		order conversationv1.Order
		want  []int64
		next  int64
	}{
		{conversationv1.Order_ORDER_OLDEST_FIRST, []int64{1, 2, 3, 4, 5, 6, 7}, 8},
		{conversationv1.Order_ORDER_NEWEST_FIRST, []int64{10, 9, 8, 7, 6, 5, 4}, 3},
	} {
		messages, next, err := m.page(r, &conversationv1.ListMessagesRequest{ConversationId: "c", Order: c.order})
		if err != nil || !slices.Equal(positions(messages), c.want) || next != c.next {
			t.Errorf("%v: %v, next %d, %v; want %v, next %d", c.order, positions(messages), next, err, c.want, c.next)
		}
	}
	_, err := m.trySay(r, "c", "larger", large+"x")
	wantReason(t, err, fault.TooLarge)
	if got := m.get(r, "c").GetHead(); got != 10 {
		t.Fatalf("the head is %d after a refusal", got)
	}
}

func TestToEverybodyElseAConversationDoesNotExist(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	m.say(r, "c", "m1", "hello")
	calls := map[string]func(ctx context.Context, id string) error{
		"GetConversation": func(ctx context.Context, id string) error {
			_, err := r.conversations.GetConversation(ctx, &conversationv1.GetConversationRequest{ConversationId: id})
			return err
		},
		"AppendMessage": func(ctx context.Context, id string) error {
			_, err := r.messages.AppendMessage(ctx, &conversationv1.AppendMessageRequest{ConversationId: id, MessageId: "m1", Parts: text("hello")})
			return err
		},
		"AppendMessage that could not be": func(ctx context.Context, id string) error {
			_, err := r.messages.AppendMessage(ctx, &conversationv1.AppendMessageRequest{
				ConversationId: id, MessageId: "m2", Parts: text("x"), To: []string{"agent:amy"}, ReplyTo: "m9", ExpectedHead: proto.Int64(7),
			})
			return err
		},
		"ListMessages": func(ctx context.Context, id string) error {
			_, err := r.messages.ListMessages(ctx, &conversationv1.ListMessagesRequest{ConversationId: id, From: proto.Int64(9)})
			return err
		},
		"GetMessage": func(ctx context.Context, id string) error {
			_, err := r.messages.GetMessage(ctx, &conversationv1.GetMessageRequest{ConversationId: id, MessageId: "m1"})
			return err
		},
	}
	strangers := map[string]context.Context{
		"a stranger":                       m.as(eve),
		"an agent named as the owner":      m.as("agent:ann"),
		"the registry, for itself":         m.as(registrySubject),
		"the owner's name, another tenant": m.asIn("umbrella", ann),
	}
	for name, call := range calls {
		absent := call(m.as(ann), "nothing")
		wantReason(t, absent, fault.ConversationNotFound)
		for who, ctx := range strangers {
			if got := call(ctx, "c"); refusal(got) != refusal(absent) {
				t.Errorf("%s by %s: %s, want as for an absent one: %s", name, who, refusal(got), refusal(absent))
			}
		}
	}
	if head := m.get(r, "c").GetHead(); head != 1 {
		t.Fatalf("the head is %d", head)
	}

	// That an id is taken can't be hidden from who wants to take it. More than
	// that is not told.
	create := func(ctx context.Context, title string) error {
		_, err := r.conversations.CreateConversation(ctx, &conversationv1.CreateConversationRequest{ConversationId: "c", Title: title})
		return err
	}
	own := create(m.as(ann), "other")
	wantReason(t, own, fault.IdempotencyMismatch)
	if got := create(m.as(eve), "plans"); refusal(got) != refusal(own) {
		t.Errorf("a stranger creates: %s, the owner: %s", refusal(got), refusal(own))
	}
	if err := create(m.asIn("umbrella", ann), "ours"); err != nil {
		t.Errorf("another tenant's ids are in the way: %v", err)
	}
}

func TestTheRegistryActsForACallerAndAsNobodyElse(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	acting := func(holder, subject string) context.Context {
		return identity.ActFor(m.as(holder), identity.Caller{Tenant: "acme", Subject: subject})
	}
	append := func(ctx context.Context, id string) (*conversationv1.AppendMessageResponse, error) {
		return r.messages.AppendMessage(ctx, &conversationv1.AppendMessageRequest{ConversationId: "c", MessageId: id, Parts: text("hello")})
	}
	resp, err := append(acting(registrySubject, bob), "m1")
	if err != nil || resp.GetMessage().GetAuthor() != bob {
		t.Fatalf("appended %v, %v", resp, err)
	}
	// By which operation, for whom and where it was said is for who delivers it, and
	// not for who reads it.
	through := identity.ActFor(m.as(registrySubject), identity.Caller{
		Tenant: "acme", Subject: bob, Session: "run-1", OnBehalfOf: []string{ann}, Operation: "conversation/say",
	})
	for range 2 { // the second is a retry by bob himself, to whom it is the same message
		if _, err := append(through, "m4"); err != nil {
			t.Fatal(err)
		}
		through = m.as(bob)
	}
	said := m.events("c", func(e *conversationv1.Event) bool {
		return len(e.GetMessagesAppended().GetMessages()) == 1 && e.GetMessagesAppended().GetMessages()[0].GetMessageId() == "m4"
	})
	if len(said) != 1 {
		t.Fatalf("said as %v", said)
	}
	if one := said[0].GetMessagesAppended().GetMessages()[0]; one.GetOperation() != "conversation/say" || one.GetSession() != "run-1" ||
		!slices.Equal(one.GetOnBehalfOf(), []string{ann}) {
		t.Fatalf("kept as %v", one)
	}
	_, err = append(acting(registrySubject, eve), "m2")
	wantReason(t, err, fault.ConversationNotFound)
	_, err = append(acting("service:gate", bob), "m3")
	wantReason(t, err, fault.ScopeMissing)
}

func TestIDsThatTryToBeMoreThanIDs(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	ctx := m.as(ann)
	hostile := []string{
		"", "../x", "/", "*", ">", "a.*", "a.>", ".", "..", "-a", "_a", " a", "a ", "a\n", "a\r\n", "\x00", "a\x00b",
		"a{b}", "a:b", "a%2Eb", "ä", strings.Repeat("a", 65),
	}
	for _, id := range hostile {
		_, err := r.conversations.CreateConversation(ctx, &conversationv1.CreateConversationRequest{ConversationId: id})
		if id == "" {
			wantReason(t, err, fault.FieldInvalid) // an id or a request_id
		} else {
			wantReason(t, err, fault.IDMalformed)
		}
		_, err = r.conversations.GetConversation(ctx, &conversationv1.GetConversationRequest{ConversationId: id})
		wantReason(t, err, fault.IDMalformed)
		_, err = r.messages.ListMessages(ctx, &conversationv1.ListMessagesRequest{ConversationId: id})
		wantReason(t, err, fault.IDMalformed)
		_, err = r.messages.GetMessage(ctx, &conversationv1.GetMessageRequest{ConversationId: "c", MessageId: id})
		wantReason(t, err, fault.IDMalformed)
		_, err = r.messages.AppendMessage(ctx, &conversationv1.AppendMessageRequest{ConversationId: "c", MessageId: id, Parts: text("x")})
		wantReason(t, err, fault.IDMalformed)
		_, err = r.messages.AppendMessage(ctx, &conversationv1.AppendMessageRequest{ConversationId: id, MessageId: "m", Parts: text("x")})
		wantReason(t, err, fault.IDMalformed)
		_, err = r.conversations.CreateConversation(ctx, &conversationv1.CreateConversationRequest{ConversationId: "c", Participants: []string{"agent:" + id}})
		wantReason(t, err, fault.FieldInvalid)
	}
	j, err := journal.OpenErasable(t.Context(), m.nats.Connect(), serviceName, 1, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if last, err := j.LastSequence(t.Context()); last != 0 || err != nil {
		t.Fatalf("%d events are in the journal, %v", last, err)
	}

	// Ids that only look alike stay apart.
	ids := []string{"a.b", "a-b", "a_b", "A.b", "a..b", "a2Eb", strings.Repeat("a", 64)}
	for _, id := range ids {
		m.create(r, id)
		m.say(r, id, id, id)
	}
	for _, id := range ids {
		if all := m.all(r, id, 10, conversationv1.Order_ORDER_UNSPECIFIED); len(all) != 1 || all[0].GetMessageId() != id {
			t.Errorf("%s holds %v", id, all)
		}
	}
}

func TestWhatARequestMayNotSay(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	for name, c := range map[string]struct {
		change func(*conversationv1.AppendMessageRequest)
		want   fault.Reason
	}{
		"no parts": {func(r *conversationv1.AppendMessageRequest) { r.Parts = nil }, fault.FieldInvalid},
		"65 parts": {func(r *conversationv1.AppendMessageRequest) { r.Parts = slices.Repeat(text("x"), 65) }, fault.FieldInvalid},
		"a call": {func(r *conversationv1.AppendMessageRequest) {
			r.Parts = callNote(ann, &conversationv1.Call{InvocationId: "i", Operation: "a/b"}).Parts
		}, fault.FieldInvalid},
		"a result": {func(r *conversationv1.AppendMessageRequest) {
			r.Parts = resultNote(&conversationv1.Result{InvocationId: "i", State: succeeded}).Parts
		}, fault.FieldInvalid},
		"JSON with a key twice":    {func(r *conversationv1.AppendMessageRequest) { r.Parts = data(`{"a":1,"a":1}`) }, fault.JSONInvalid},
		"an id of weir's own":      {func(r *conversationv1.AppendMessageRequest) { r.MessageId = callID("i") }, fault.IDMalformed},
		"to somebody else":         {func(r *conversationv1.AppendMessageRequest) { r.To = []string{eve} }, fault.FieldInvalid},
		"to somebody twice":        {func(r *conversationv1.AppendMessageRequest) { r.To = []string{bob, bob} }, fault.FieldInvalid},
		"in reply to nothing":      {func(r *conversationv1.AppendMessageRequest) { r.ReplyTo = "m9" }, fault.MessageNotFound},
		"in reply to no id at all": {func(r *conversationv1.AppendMessageRequest) { r.ReplyTo = "*" }, fault.FieldInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			req := &conversationv1.AppendMessageRequest{ConversationId: "c", MessageId: "m", Parts: text("hello")}
			c.change(req)
			_, err := r.messages.AppendMessage(m.as(ann), req)
			wantReason(t, err, c.want)
		})
	}
	if head := m.get(r, "c").GetHead(); head != 0 {
		t.Fatalf("the head is %d", head)
	}
}

func TestTheListHasNewestActivityFirstAndOnlyOnesOwn(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	for _, id := range []string{"c1", "c2", "c3"} {
		m.create(r, id)
	}
	if _, err := r.conversations.CreateConversation(m.as(eve), &conversationv1.CreateConversationRequest{ConversationId: "eves"}); err != nil {
		t.Fatal(err)
	}
	m.say(r, "c1", "m1", "hello")

	list := func(ctx context.Context, size int32) (ids []string, err error) {
		req := &conversationv1.ListConversationsRequest{PageSize: size}
		for {
			resp, err := r.conversations.ListConversations(ctx, req)
			if err != nil {
				return nil, err
			}
			for _, c := range resp.GetConversations() {
				ids = append(ids, c.GetConversationId())
			}
			if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
				return ids, nil
			}
		}
	}
	wantListed := func(subject string, ctx context.Context, want ...string) {
		t.Helper()
		for _, size := range []int32{0, 1, 2, 3} {
			meshtest.Eventually(t, fmt.Sprintf("%s lists %v by %d", subject, want, size), func() bool {
				got, err := list(ctx, size)
				if err != nil && !fault.Is(err, fault.IndexRebuilding) {
					t.Fatal(err)
				}
				return err == nil && slices.Equal(got, want)
			})
		}
	}
	all := func() {
		t.Helper()
		wantListed(ann, m.as(ann), "c1", "c3", "c2")
		wantListed(bob, m.as(bob), "c1", "c3", "c2")
		wantListed(eve, m.as(eve), "eves")
		wantListed("another tenant", m.asIn("umbrella", ann))
	}
	all()
	m.redis.Flush()
	all()

	_, err := r.conversations.ListConversations(m.as(ann), &conversationv1.ListConversationsRequest{PageToken: "forged"})
	wantReason(t, err, fault.PageTokenInvalid)
}
