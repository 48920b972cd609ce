package conversation

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

// group puts a group of ann's.
func (m *mesh) group(r replica, id string, rule conversationv1.TurnRule, members string) *conversationv1.Group {
	m.t.Helper()
	g := &conversationv1.Group{GroupId: id, Members: agents(members), TurnRule: rule, TurnTimeout: durationpb.New(time.Second)}
	if rule == moderated {
		g.Moderator = g.Members[0]
	}
	resp, err := r.groups.PutGroup(m.as(ann), &conversationv1.PutGroupRequest{Group: g})
	if err != nil {
		m.t.Fatalf("put %v: %v", g, err)
	}
	return resp.GetGroup()
}

// with makes a conversation of ann and groups.
func (m *mesh) with(r replica, id string, groups ...string) *conversationv1.Conversation {
	m.t.Helper()
	resp, err := r.conversations.CreateConversation(m.as(ann), &conversationv1.CreateConversationRequest{ConversationId: id, Participants: groups})
	if err != nil {
		m.t.Fatalf("create %s: %v", id, err)
	}
	return resp.GetConversation()
}

// tellGroup says something of ann's to a group, and gives to whom it came.
func (m *mesh) tellGroup(r replica, conversation, id, group string) string {
	m.t.Helper()
	resp, err := r.messages.AppendMessage(m.as(ann), &conversationv1.AppendMessageRequest{
		ConversationId: conversation, MessageId: id, Parts: text(id), To: []string{group},
	})
	if err != nil {
		m.t.Fatalf("say %s to %s: %v", id, group, err)
	}
	return letters(resp.GetMessage().GetAddressed())
}

func (m *mesh) mayRead(r replica, subject, id string) bool {
	_, err := r.conversations.GetConversation(m.as(subject), &conversationv1.GetConversationRequest{ConversationId: id})
	if err != nil && !fault.Is(err, fault.ConversationNotFound) {
		m.t.Fatalf("get %s as %s: %v", id, subject, err)
	}
	return err == nil
}

// listed are the conversations that a subject lists, nil while there is no list.
func (m *mesh) listed(r replica, subject string) []string {
	m.t.Helper()
	all := []string{}
	req := &conversationv1.ListConversationsRequest{PageSize: 1000}
	for {
		resp, err := r.conversations.ListConversations(m.as(subject), req)
		if fault.Is(err, fault.IndexRebuilding) {
			return nil
		}
		if err != nil {
			m.t.Fatal(err)
		}
		for _, c := range resp.GetConversations() {
			all = append(all, c.GetConversationId())
		}
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			return all
		}
	}
}

func TestAGroupFromItsStartToItsEnd(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	first := m.group(r, "g", roundRobin, "xyz")
	wantEqual(t, "the group", first, &conversationv1.Group{
		GroupId: "g", Owner: ann, Members: agents("xyz"), TurnRule: roundRobin, TurnTimeout: durationpb.New(time.Second), Revision: 1,
	})
	wantEqual(t, "the same again", m.group(r, "g", roundRobin, "xyz"), first)
	second := m.group(r, "g", roundRobin, "xzy")
	if second.GetRevision() != 2 {
		t.Fatalf("another order is revision %d", second.GetRevision())
	}
	plain, err := r.groups.PutGroup(m.as(ann), &conversationv1.PutGroupRequest{Group: &conversationv1.Group{GroupId: "plain", Members: agents("x")}})
	if err != nil || plain.GetGroup().GetTurnRule() != allAtOnce || plain.GetGroup().GetTurnTimeout().AsDuration() != defaultTurnTimeout {
		t.Fatalf("without a rule: %v, %v", plain, err)
	}

	for who, ctx := range map[string]context.Context{"its owner": m.as(ann), "a member": m.as("agent:y"), "an administrator": m.admin()} {
		got, err := r.groups.GetGroup(ctx, &conversationv1.GetGroupRequest{GroupId: "g"})
		if err != nil {
			t.Fatalf("%s: %v", who, err)
		}
		wantEqual(t, "the group to "+who, got.GetGroup(), second)
	}
	_, err = r.groups.PutGroup(m.as(eve), &conversationv1.PutGroupRequest{Group: &conversationv1.Group{GroupId: "g", Members: agents("e")}})
	wantReason(t, err, fault.AlreadyExists)
	_, err = r.groups.DeleteGroup(m.as("agent:y"), &conversationv1.DeleteGroupRequest{GroupId: "g"})
	wantReason(t, err, fault.NotOwner)

	for range 2 {
		if _, err := r.groups.DeleteGroup(m.as(ann), &conversationv1.DeleteGroupRequest{GroupId: "g"}); err != nil {
			t.Fatal(err)
		}
	}
	for who, ctx := range map[string]context.Context{"its owner": m.as(ann), "a member": m.as("agent:y"), "an administrator": m.admin()} {
		_, err := r.groups.GetGroup(ctx, &conversationv1.GetGroupRequest{GroupId: "g"})
		if !fault.Is(err, fault.GroupNotFound) {
			t.Errorf("%s, when it is deleted: %v", who, err)
		}
	}
	_, err = r.groups.DeleteGroup(m.as("agent:y"), &conversationv1.DeleteGroupRequest{GroupId: "g"})
	wantReason(t, err, fault.GroupNotFound)
	// Conversations may know it still: whoever took the name over would get into them.
	_, err = r.groups.PutGroup(m.as(eve), &conversationv1.PutGroupRequest{Group: &conversationv1.Group{GroupId: "g", Members: agents("e")}})
	wantReason(t, err, fault.AlreadyExists)
	if again := m.group(r, "g", allAtOnce, "x"); again.GetRevision() != 4 {
		t.Fatalf("put again it is %v", again)
	}
	if _, err := r.groups.DeleteGroup(m.admin(), &conversationv1.DeleteGroupRequest{GroupId: "g"}); err != nil {
		t.Fatalf("by an administrator: %v", err)
	}
}

func TestGroupsThatCannotBe(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	for name, g := range map[string]*conversationv1.Group{
		"of nobody":                        {},
		"of groups":                        {Members: []string{"group:h"}},
		"of people":                        {Members: []string{"human:bob"}},
		"of one twice":                     {Members: agents("xx")},
		"of too many":                      {Members: agents(strings.Repeat("x", 101))},
		"moderated by nobody":              {Members: agents("x"), TurnRule: moderated},
		"moderated from outside":           {Members: agents("x"), TurnRule: moderated, Moderator: "agent:y"},
		"a moderator without moderation":   {Members: agents("x"), Moderator: "agent:x"},
		"of a rule that is none":           {Members: agents("x"), TurnRule: 9},
		"where nobody has time to answer":  {Members: agents("x"), TurnTimeout: durationpb.New(time.Millisecond)},
		"where an answer can take forever": {Members: agents("x"), TurnTimeout: durationpb.New(8 * 24 * time.Hour)},
	} {
		g.GroupId = "g"
		_, err := r.groups.PutGroup(m.as(ann), &conversationv1.PutGroupRequest{Group: g})
		if !fault.Is(err, fault.FieldInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := r.groups.GetGroup(m.as(ann), &conversationv1.GetGroupRequest{GroupId: "g"})
	wantReason(t, err, fault.GroupNotFound)
}

func TestOnlyGroupsThatTheCallerSeesTakePart(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.group(r, "g", allAtOnce, "x")
	m.create(r, "c")
	ways := map[string]func(who, group string) error{
		"create": func(who, group string) error {
			_, err := r.conversations.CreateConversation(m.as(who), &conversationv1.CreateConversationRequest{ConversationId: "by-" + who[len("human:"):], Participants: []string{group}})
			return err
		},
		"update": func(who, group string) error {
			m.must(r.conversations.CreateConversation(m.as(who), &conversationv1.CreateConversationRequest{ConversationId: "u-" + who[len("human:"):]}))
			_, err := r.conversations.UpdateConversation(m.as(who), &conversationv1.UpdateConversationRequest{
				ConversationId: "u-" + who[len("human:"):], UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"participants"}}, Participants: []string{group},
			})
			return err
		},
		"fork": func(who, group string) error {
			m.must(r.conversations.CreateConversation(m.as(who), &conversationv1.CreateConversationRequest{ConversationId: "p-" + who[len("human:"):]}))
			_, err := r.conversations.ForkConversation(m.as(who), &conversationv1.ForkConversationRequest{
				ParentConversationId: "p-" + who[len("human:"):], ConversationId: "f-" + who[len("human:"):], Participants: []string{group},
			})
			return err
		},
	}
	for name, way := range ways {
		absent := way(eve, "group:h")
		wantReason(t, absent, fault.GroupNotFound)
		if got := way(eve, "group:g"); refusal(got) != refusal(absent) {
			t.Errorf("%s with a foreign group: %s, want as with an absent one: %s", name, refusal(got), refusal(absent))
		}
		if err := way(ann, "group:g"); err != nil {
			t.Errorf("%s with an own group: %v", name, err)
		}
	}
	var many []string
	for i := range maxGroups + 1 {
		m.group(r, fmt.Sprint("g", i), allAtOnce, "x")
		many = append(many, fmt.Sprint("group:g", i))
	}
	m.with(r, "most", many[:maxGroups]...)
	_, err := r.conversations.CreateConversation(m.as(ann), &conversationv1.CreateConversationRequest{ConversationId: "more", Participants: many})
	wantReason(t, err, fault.LimitReached)
}

// must ends the test where a call failed.
func (m *mesh) must(_ proto.Message, err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func TestTheListOfGroupsIsPagedAndOnesOwn(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	var want []string
	for i := range 7 {
		m.group(r, fmt.Sprint("g", i), allAtOnce, []string{"x", "xy"}[i%2])
		want = append([]string{fmt.Sprint("g", i)}, want...)
	}
	m.must(r.groups.PutGroup(m.as(eve), &conversationv1.PutGroupRequest{Group: &conversationv1.Group{GroupId: "eves", Members: agents("e")}}))
	m.must(r.groups.DeleteGroup(m.as(ann), &conversationv1.DeleteGroupRequest{GroupId: "g3"}))
	want = slices.DeleteFunc(want, func(id string) bool { return id == "g3" })
	listed := func(subject string, size int32) (ids []string) {
		req := &conversationv1.ListGroupsRequest{PageSize: size}
		for {
			resp, err := r.groups.ListGroups(m.as(subject), req)
			if fault.Is(err, fault.IndexRebuilding) {
				return []string{"rebuilding"}
			}
			if err != nil {
				t.Fatal(err)
			}
			if resp.GetNextPageToken() != "" && len(resp.GetGroups()) != int(size) {
				t.Fatalf("a page of %d holds %d", size, len(resp.GetGroups()))
			}
			for _, g := range resp.GetGroups() {
				ids = append(ids, g.GetGroupId())
			}
			if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
				return ids
			}
		}
	}
	for range 2 {
		for _, size := range []int32{1, 2, 3, 100} {
			for subject, ids := range map[string][]string{ann: want, "agent:x": want, "agent:y": {"g5", "g1"}, eve: {"eves"}, bob: nil} {
				meshtest.Eventually(t, fmt.Sprintf("%s lists %v by %d", subject, ids, size), func() bool { return slices.Equal(listed(subject, size), ids) })
			}
		}
		m.redis.Flush()
	}
}

// More conversations than are changed at once, from two replicas, with Redis flushed
// before and all of it heard again after.
func TestAChangeOfAGroupReachesAllOfItsConversations(t *testing.T) {
	m := newMesh(t)
	r, other := m.start(), m.start()
	m.group(r, "g", allAtOnce, "xy")
	const n = regroupPage + 8
	var ids []string
	for i := range n {
		ids = append([]string{fmt.Sprint("c", i)}, ids...)
		m.with([]replica{r, other}[i%2], ids[0], "group:g")
	}
	m.say(r, "c0", "m0", "for members")
	open, err := r.messages.TailMessages(m.as("agent:x"), &conversationv1.TailMessagesRequest{ConversationId: "c0", After: proto.Int64(0)})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := open.Recv(); err != nil || got.GetMessage().GetMessageId() != "m0" {
		t.Fatalf("x tails %v, %v", got, err)
	}
	m.must(r.conversations.CloseConversation(m.as(ann), &conversationv1.CloseConversationRequest{ConversationId: "c1"}))
	m.redis.Flush()
	m.group(other, "g", allAtOnce, "yz")

	changed := func() {
		t.Helper()
		for _, id := range ids {
			meshtest.Eventually(t, id+" has heard of it", func() bool {
				return !m.mayRead(r, "agent:x", id) && m.mayRead(other, "agent:y", id) && m.mayRead(r, "agent:z", id)
			})
		}
		for subject, want := range map[string]int{"agent:x": 0, "agent:y": n, "agent:z": n} {
			meshtest.Eventually(t, fmt.Sprintf("%s lists %d", subject, want), func() bool {
				listed := m.listed(other, subject)
				return listed != nil && len(listed) == want
			})
		}
	}
	changed()
	_, err = open.Recv()
	wantReason(t, err, fault.ConversationNotFound)
	if head := m.get(r, "c0").GetHead(); head != 1 {
		t.Fatalf("a change that ended no turn is told: the head is %d", head)
	}

	// All of it is heard again, by a consumer that lost its place.
	before := m.eventsIn(journal.StreamName(serviceName))
	js, err := jetstream.New(m.nats.Connect())
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(t.Context(), journal.StreamName(serviceName), groupsConsumer); err != nil {
		t.Fatal(err)
	}
	m.must(r.groups.PutGroup(m.as(ann), &conversationv1.PutGroupRequest{Group: &conversationv1.Group{GroupId: "h", Members: agents("x")}}))
	m.heard(js)
	changed()
	if after := m.eventsIn(journal.StreamName(serviceName)); after != before+1 {
		t.Fatalf("%d events were added by hearing again", after-before-1)
	}
	m.must(r.groups.DeleteGroup(m.as(ann), &conversationv1.DeleteGroupRequest{GroupId: "g"}))
	for _, id := range ids {
		meshtest.Eventually(t, "nobody of the group is left in "+id, func() bool { return !m.mayRead(r, "agent:y", id) && !m.mayRead(r, "agent:z", id) })
	}
	if got := m.tellGroup(r, "c0", "m9", "group:g"); got != "" {
		t.Fatalf("what is said to a group that is no more comes to %q", got)
	}
}

// eventsIn is how many a stream holds.
func (m *mesh) eventsIn(stream string) uint64 {
	m.t.Helper()
	js, err := jetstream.New(m.nats.Connect())
	if err != nil {
		m.t.Fatal(err)
	}
	s, err := js.Stream(m.t.Context(), stream)
	if err != nil {
		m.t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

// heard waits until every change of a group was brought into conversations.
func (m *mesh) heard(js jetstream.JetStream) {
	m.t.Helper()
	meshtest.Eventually(m.t, "changes of groups are handled", func() bool {
		consumer, err := js.Consumer(m.t.Context(), journal.StreamName(serviceName), groupsConsumer)
		if err != nil {
			return false
		}
		info := consumer.CachedInfo()
		return info.Delivered.Stream > 0 && info.NumPending == 0 && info.NumAckPending == 0
	})
}

func TestAConversationThatBeginsWhileItsGroupChangesHearsOfIt(t *testing.T) {
	m := newMesh(t)
	a, b := m.start(), m.start()
	m.group(a, "g", allAtOnce, "x")
	m.must(a.conversations.CreateConversation(m.as(ann), &conversationv1.CreateConversationRequest{ConversationId: "updated"}))
	const n = 12
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range n {
			m.group(b, "g", allAtOnce, []string{"xy", "xz"}[i%2])
		}
	})
	var ids []string
	for i := range n {
		id := fmt.Sprint("c", i)
		ids = append(ids, id)
		m.with(a, id, "group:g")
		for _, participants := range [][]string{{"group:g"}, nil, {"group:g"}} {
			m.must(a.conversations.UpdateConversation(m.as(ann), &conversationv1.UpdateConversationRequest{
				ConversationId: "updated", UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"participants"}}, Participants: participants,
			}))
		}
	}
	wg.Wait()
	for _, id := range append(ids, "updated") {
		meshtest.Eventually(t, id+" has the newest members", func() bool {
			return m.mayRead(a, "agent:x", id) && !m.mayRead(a, "agent:y", id) && m.mayRead(b, "agent:z", id)
		})
	}
}

// A round in which nobody answers, over a flush of Redis and a restart, with two
// replicas that both see the deadlines.
func TestAMemberThatNeverAnswersIsRecordedOnce(t *testing.T) {
	m := newMesh(t)
	r, other := m.start(), m.start()
	m.group(r, "g", roundRobin, "xyz")
	m.with(r, "c", "group:g")
	want(t, "first", m.tellGroup(r, "c", "m1", "group:g"), "x")
	if turns := m.get(r, "c").GetTurns(); len(turns) != 1 || turns[0].GetGroup() != "group:g" || turns[0].GetMessageId() != "m1" || letters(turns[0].GetMembers()) != "x" {
		t.Fatalf("waiting: %v", turns)
	}
	m.redis.Flush()
	meshtest.Eventually(t, "x is late", func() bool { return m.get(r, "c").GetHead() >= 2 })
	other.stop()
	r.stop()
	r, other = m.start(), m.start()
	meshtest.Eventually(t, "everybody is late", func() bool { return m.get(r, "c").GetHead() >= 4 && len(m.get(other, "c").GetTurns()) == 0 })

	all := m.all(r, "c", 10, conversationv1.Order_ORDER_UNSPECIFIED)
	if len(all) != 4 {
		t.Fatalf("there is %v", all)
	}
	for i, member := range agents("xyz") {
		got := all[i+1]
		var next []string
		if i < 2 {
			next = agents("yz")[i : i+1]
		}
		wantEqual(t, "the record of "+member, got, &conversationv1.Message{
			ConversationId: "c", MessageId: turnID("m1", "g", member), Position: int64(i + 2), Author: self, ReplyTo: "m1",
			CreateTime: got.GetCreateTime(), Addressed: next,
			Parts: []*conversationv1.Part{{Part: &conversationv1.Part_Turn{Turn: &conversationv1.TurnNote{
				Group: "group:g", Member: member, Outcome: timedOut, MessageId: "m1",
			}}}},
		})
	}
}

func TestAMemberThatDeclinesAndOneThatIsRemovedHandTheMessageOn(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.must(r.groups.PutGroup(m.as(ann), &conversationv1.PutGroupRequest{Group: &conversationv1.Group{GroupId: "g", Members: agents("xyz"), TurnRule: roundRobin}}))
	m.with(r, "c", "group:g")
	m.tellGroup(r, "c", "m1", "group:g")
	decline := func(who string) (*conversationv1.Message, error) {
		resp, err := r.messages.DeclineTurn(m.as(who), &conversationv1.DeclineTurnRequest{ConversationId: "c", MessageId: "m1", Note: "busy"})
		return resp.GetMessage(), err
	}
	_, err := decline("agent:y")
	wantReason(t, err, fault.NotYourTurn)
	first, err := decline("agent:x")
	if err != nil || first.GetAuthor() != "agent:x" || letters(first.GetAddressed()) != "y" {
		t.Fatalf("declined: %v, %v", first, err)
	}
	m.redis.Flush()
	again, err := decline("agent:x")
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "declined again", again, first)

	// y is taken out while it is its turn.
	m.must(r.groups.PutGroup(m.as(ann), &conversationv1.PutGroupRequest{Group: &conversationv1.Group{GroupId: "g", Members: agents("xz"), TurnRule: roundRobin}}))
	meshtest.Eventually(t, "z has the turn", func() bool {
		turns := m.get(r, "c").GetTurns()
		return len(turns) == 1 && letters(turns[0].GetMembers()) == "z"
	})
	_, err = decline("agent:y")
	wantReason(t, err, fault.ConversationNotFound)
	record := m.all(r, "c", 10, conversationv1.Order_ORDER_NEWEST_FIRST)[0]
	if n := record.GetParts()[0].GetTurn(); n.GetOutcome() != removed || n.GetMember() != "agent:y" || letters(record.GetAddressed()) != "z" {
		t.Fatalf("recorded %v", record)
	}
	m.must(r.messages.AppendMessage(m.as("agent:z"), &conversationv1.AppendMessageRequest{
		ConversationId: "c", MessageId: "a1", Parts: text("here"), ReplyTo: record.GetMessageId(),
	}))
	if turns := m.get(r, "c").GetTurns(); len(turns) != 0 {
		t.Fatalf("still waiting: %v", turns)
	}

	// Over all events, each member is addressed once about m1.
	seen := map[string]int{}
	for _, said := range m.all(r, "c", 10, conversationv1.Order_ORDER_UNSPECIFIED) {
		for _, to := range said.GetAddressed() {
			seen[to]++
		}
	}
	for _, member := range agents("xyz") {
		if seen[member] != 1 {
			t.Errorf("%s was addressed %d times", member, seen[member])
		}
	}
}

// Who is in a group of that name here was not there when it was said.
func TestAnImportBringsNobodyInByTheNameOfAGroup(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	stream, err := r.retention.ImportConversation(m.admin())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`{"conversation":{"conversation_id":"c","owner":"` + ann + `","participants":["group:g"]}}`,
		`{"message":{"message_id":"m1","author":"` + ann + `","parts":[{"text":"hello"}],"to":["group:g"]}}`,
		`{"message":{"message_id":"` + askID("p") + `","author":"` + gateSubject + `","parts":[{"approval":{"approval_id":"p","operation":"a/b","state":"PENDING"}}]}}`,
	} {
		if err := stream.Send(&conversationv1.ImportConversationRequest{Line: line}); err != nil {
			t.Fatal(err)
		}
	}
	if resp, err := stream.CloseAndRecv(); err != nil || resp.GetImported() != 2 || resp.GetConversation().GetState() != active {
		t.Fatalf("imported %v, %v", resp, err)
	}
	m.must(r.groups.PutGroup(m.as(eve), &conversationv1.PutGroupRequest{Group: &conversationv1.Group{GroupId: "g", Members: agents("e")}}))
	set := func() error {
		_, err := r.conversations.UpdateConversation(m.as(ann), &conversationv1.UpdateConversationRequest{
			ConversationId: "c", UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"participants"}}, Participants: []string{"group:g"},
		})
		return err
	}
	wantReason(t, set(), fault.GroupNotFound)
	js, err := jetstream.New(m.nats.Connect())
	if err != nil {
		t.Fatal(err)
	}
	m.heard(js)
	if m.mayRead(r, "agent:e", "c") {
		t.Fatal("whoever made a group of that name is in")
	}
	// Somebody who sees the group, and may, sets it.
	m.must(r.conversations.UpdateConversation(m.admin(), &conversationv1.UpdateConversationRequest{
		ConversationId: "c", UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"participants"}}, Participants: []string{"group:g"},
	}))
	if !m.mayRead(r, "agent:e", "c") {
		t.Fatal("the group was set, and its members are not in")
	}
}
