package conversation

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
)

const (
	oldestFirst = conversationv1.Order_ORDER_UNSPECIFIED
	newestFirst = conversationv1.Order_ORDER_NEWEST_FIRST
)

// told lists a whole conversation as somebody sees it, page by page.
func (m *mesh) told(r replica, who, conversation string, size int32, order conversationv1.Order) []*conversationv1.Message {
	m.t.Helper()
	var all []*conversationv1.Message
	req := &conversationv1.ListMessagesRequest{ConversationId: conversation, PageSize: size, Order: order}
	for {
		resp, err := r.messages.ListMessages(m.as(who), req)
		if err != nil {
			m.t.Fatalf("list %v: %v", req, err)
		}
		all = append(all, resp.GetMessages()...)
		if resp.Next == nil {
			return all
		}
		req.From = resp.Next
	}
}

// outline is who says what, as `id@origin`, with what was erased marked.
func outline(messages []*conversationv1.Message) string {
	var all []string
	for _, m := range messages {
		one := m.GetMessageId()
		if m.GetOriginConversationId() != "" {
			one += "@" + m.GetOriginConversationId()
		}
		switch m.GetErasure() {
		case conversationv1.Erasure_ERASURE_REDACTED:
			one = "-" + one
		case conversationv1.Erasure_ERASURE_CONVERSATION_DELETED:
			one = "gone" + one
		}
		all = append(all, one)
	}
	return strings.Join(all, " ")
}

func (m *mesh) fork(r replica, who, parent string, position int64, id string, participants ...string) error {
	_, err := r.conversations.ForkConversation(m.as(who), &conversationv1.ForkConversationRequest{
		ParentConversationId: parent, Position: position, ConversationId: id, Participants: participants,
	})
	return err
}

func (m *mesh) speak(r replica, who, conversation, id string, change ...func(*conversationv1.AppendMessageRequest)) error {
	req := &conversationv1.AppendMessageRequest{ConversationId: conversation, MessageId: id, Parts: text("words of " + id)}
	for _, c := range change {
		c(req)
	}
	_, err := r.messages.AppendMessage(m.as(who), req)
	return err
}

// lineage is a root of ann's with r1 to r4, a fork of it at 2 with m3 and m4, a fork
// of that at 3 with l4, which carol alone takes part in, and another fork of the root.
func (m *mesh) lineage(r replica) {
	m.t.Helper()
	m.create(r, "root")
	pinned := func(req *conversationv1.AppendMessageRequest) { req.Pinned = true }
	for _, step := range []func() error{
		func() error { return m.speak(r, ann, "root", "r1", pinned) },
		func() error { return m.speak(r, bob, "root", "r2") },
		func() error { return m.speak(r, ann, "root", "r3") },
		func() error { return m.fork(r, ann, "root", 2, "middle", bob) },
		func() error { return m.speak(r, ann, "middle", "m3") },
		func() error { return m.speak(r, bob, "middle", "m4") },
		func() error { return m.fork(r, bob, "middle", 3, "leaf", carol) },
		func() error { return m.speak(r, carol, "leaf", "l4") },
		func() error { return m.fork(r, ann, "root", 3, "other") },
		func() error { return m.speak(r, ann, "root", "r4") },
	} {
		if err := step(); err != nil {
			m.t.Fatal(err)
		}
	}
}

// wantTold compares what everybody is told, in pages of all sizes and both ways.
func (m *mesh) wantTold(r replica, want map[string]string) {
	m.t.Helper()
	readers := map[string]string{"root": ann, "middle": ann, "leaf": carol, "other": ann}
	for id, outlined := range want {
		for size := int32(1); size <= 5; size++ {
			forward := m.told(r, readers[id], id, size, oldestFirst)
			if got := outline(forward); got != outlined {
				m.t.Errorf("%s in pages of %d is %q, want %q", id, size, got, outlined)
			}
			for i, it := range forward {
				if it.GetPosition() != int64(i+1) || it.GetConversationId() != id {
					m.t.Errorf("message %d of %s is %v", i+1, id, it)
				}
			}
			backward := m.told(r, readers[id], id, size, newestFirst)
			slices.Reverse(backward)
			if got := outline(backward); got != outlined {
				m.t.Errorf("%s backwards in pages of %d is %q, want %q", id, size, got, outlined)
			}
		}
	}
}

func TestWhatEachReaderOfAForkSees(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.lineage(r)
	want := map[string]string{
		"root": "r1 r2 r3 r4", "middle": "r1@root r2@root m3 m4",
		"leaf": "r1@root r2@root m3@middle l4", "other": "r1@root r2@root r3@root",
	}
	m.wantTold(r, want)
	m.redis.Flush()
	m.wantTold(r, want)

	// Carol reads the past that her fork shares, and nothing else of it.
	for _, id := range []string{"root", "middle"} {
		_, err := r.messages.ListMessages(m.as(carol), &conversationv1.ListMessagesRequest{ConversationId: id})
		wantReason(t, err, fault.ConversationNotFound)
	}
	get := func(conversation, id string) (*conversationv1.Message, error) {
		resp, err := r.messages.GetMessage(m.as(carol), &conversationv1.GetMessageRequest{ConversationId: conversation, MessageId: id})
		return resp.GetMessage(), err
	}
	for id, origin := range map[string]string{"r1": "root", "m3": "middle", "l4": ""} {
		it, err := get("leaf", id)
		if err != nil || it.GetOriginConversationId() != origin || it.GetConversationId() != "leaf" || it.GetCreateTime() == nil {
			t.Errorf("%s is %v, %v", id, it, err)
		}
	}
	for _, id := range []string{"r3", "m4", "r4"} {
		_, err := get("leaf", id)
		wantReason(t, err, fault.MessageNotFound)
	}
	// Ids and replies know the past, and nothing that came after it.
	reply := func(to string) func(*conversationv1.AppendMessageRequest) {
		return func(req *conversationv1.AppendMessageRequest) { req.ReplyTo = to }
	}
	wantReason(t, m.speak(r, carol, "leaf", "r1"), fault.IdempotencyMismatch)
	wantReason(t, m.speak(r, carol, "leaf", "m3"), fault.IdempotencyMismatch)
	wantReason(t, m.speak(r, carol, "leaf", "l5", reply("m4")), fault.MessageNotFound)
	if err := m.speak(r, carol, "leaf", "m4", reply("r2")); err != nil {
		t.Errorf("an id that the parent took later, in answer to the past: %v", err)
	}
	// The past is redacted where it was said.
	_, err := r.messages.RedactMessage(m.as(ann), &conversationv1.RedactMessageRequest{ConversationId: "middle", MessageId: "r1"})
	wantReason(t, err, fault.FieldInvalid)
	if !strings.Contains(refusal(err), "root") {
		t.Errorf("the refusal does not say where: %s", refusal(err))
	}
	_, err = r.messages.RedactMessage(m.as(carol), &conversationv1.RedactMessageRequest{ConversationId: "leaf", MessageId: "m4"})
	if err != nil {
		t.Errorf("her own: %v", err)
	}
}

func TestAModelGetsWhatWasPinnedInTheSharedPast(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.lineage(r)
	window := func() string {
		resp, err := r.messages.GetContext(m.as(carol), &conversationv1.GetContextRequest{
			ConversationId: "leaf", Budget: &conversationv1.GetContextRequest_MaxBytes{MaxBytes: 35},
		})
		if err != nil {
			t.Fatal(err)
		}
		return outline(resp.GetMessages())
	}
	if got := window(); !strings.HasPrefix(got, "r1@root ") || strings.Contains(got, "r2") || !strings.HasSuffix(got, "l4") {
		t.Errorf("the window is %q, want what is pinned and the newest", got)
	}
	m.redact(r, "root", "r1")
	if got := window(); strings.Contains(got, "r1") && !strings.Contains(got, "r2") {
		t.Errorf("redacted, it still stands in front: %q", got)
	}
}

func TestAnExportOfAForkHoldsItsOwnMessages(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.lineage(r)
	stream, err := r.retention.ExportConversation(m.holding("acme", "human:ada", scopeAdmin, scopeErase), &conversationv1.ExportConversationRequest{ConversationId: "middle"})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for {
		resp, err := stream.Recv()
		if err != nil {
			break
		}
		lines = append(lines, resp.GetLine())
	}
	if len(lines) != 3 || !strings.Contains(lines[0], `"root"`) || !strings.Contains(lines[1], `"m3"`) || !strings.Contains(lines[2], `"m4"`) {
		t.Errorf("the export is %v", lines)
	}
}

// Each erasure shows in all that share what it took, and in nothing else.
func TestErasingAnAncestorLeavesGapsWhereItIsShared(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.lineage(r)
	m.redact(r, "root", "r2")
	m.wantTold(r, map[string]string{
		"root": "r1 -r2 r3 r4", "middle": "r1@root -r2@root m3 m4",
		"leaf": "r1@root -r2@root m3@middle l4", "other": "r1@root -r2@root r3@root",
	})
	if !m.remove(r, "middle").GetFinished() {
		t.Fatal("the middle is not deleted")
	}
	want := map[string]string{
		"root": "r1 -r2 r3 r4", "leaf": "r1@root -r2@root gone@middle l4", "other": "r1@root -r2@root r3@root",
	}
	m.wantTold(r, want)
	m.redis.Flush()
	m.wantTold(r, want)
	// Nobody knows the ids of what is gone, so they are free in the fork.
	wantReason(t, m.speak(r, carol, "leaf", "l5", func(req *conversationv1.AppendMessageRequest) { req.ReplyTo = "m3" }), fault.MessageNotFound)
	if err := m.speak(r, carol, "leaf", "m3"); err != nil {
		t.Errorf("an id of a conversation that is gone: %v", err)
	}
	// What a redaction left is still known by its id.
	wantReason(t, m.speak(r, carol, "leaf", "r2"), fault.IdempotencyMismatch)
	if err := m.fork(r, carol, "leaf", 4, "last"); err != nil {
		t.Fatal(err)
	}
	if !m.remove(r, "root").GetFinished() {
		t.Fatal("the root is not deleted")
	}
	m.wantTold(r, map[string]string{"leaf": "gone@root gone@root gone@middle l4 m3", "other": "gone@root gone@root gone@root"})
	if got := outline(m.told(r, carol, "last", 10, oldestFirst)); got != "gone@root gone@root gone@middle l4@leaf" {
		t.Errorf("a fork of it is %q", got)
	}
	if !m.remove(r, "leaf").GetFinished() {
		t.Fatal("the leaf is not deleted")
	}
	if got := outline(m.told(r, carol, "last", 2, newestFirst)); got != "gone@leaf gone@middle gone@root gone@root" {
		t.Errorf("after all it is %q", got)
	}
	wantReason(t, m.fork(r, ann, "root", 1, "late"), fault.ConversationNotFound)
	if err := m.speak(r, carol, "last", "x5"); err != nil {
		t.Errorf("it does not go on: %v", err)
	}
}

// Pages end at two mebibytes wherever the conversations meet.
func TestLargePagesCrossFromOneConversationToTheOther(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	large := strings.Repeat("x", maxMessageBytes)
	say := func(conversation string, from, to int) {
		t.Helper()
		for i := from; i <= to; i++ {
			m.say(r, conversation, fmt.Sprint("m", i), large)
		}
	}
	m.create(r, "a")
	say("a", 1, 5)
	for _, step := range []struct {
		parent, id string
		at         int
	}{{"a", "b", 4}, {"b", "c", 7}} {
		if err := m.fork(r, ann, step.parent, int64(step.at), step.id); err != nil {
			t.Fatal(err)
		}
		say(step.id, step.at+1, step.at+4)
	}
	for _, order := range []conversationv1.Order{oldestFirst, newestFirst} {
		req := &conversationv1.ListMessagesRequest{ConversationId: "c", PageSize: 1000, Order: order}
		var all []int64
		for pages := 1; ; pages++ {
			messages, next, err := m.page(r, req)
			if err != nil {
				t.Fatal(err)
			}
			bytes := 0
			for _, it := range messages {
				bytes += proto.Size(it)
			}
			if bytes > maxPageBytes+64<<10 || len(messages) > 8 {
				t.Errorf("a page has %d messages of %d bytes", len(messages), bytes)
			}
			all = append(all, positions(messages)...)
			if next == 0 {
				break
			}
			req.From = &next
		}
		if order == newestFirst {
			slices.Reverse(all)
		}
		if len(all) != 11 || all[0] != 1 || all[10] != 11 || !slices.IsSorted(all) {
			t.Errorf("the pages have %v", all)
		}
	}
}
