package conversation

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/meshtest"
)

func mask(paths ...string) *fieldmaskpb.FieldMask { return &fieldmaskpb.FieldMask{Paths: paths} }

// find pages through what a search finds, and gives conversation and position of each.
func (m *mesh) find(r replica, ctx context.Context, conversation, query string, size int32) ([]string, error) {
	var found []string
	req := &conversationv1.SearchMessagesRequest{ConversationId: conversation, Query: query, PageSize: size}
	for {
		page, err := r.messages.SearchMessages(ctx, req)
		if err != nil {
			return nil, err
		}
		if len(page.GetMessages()) > int(size) {
			return nil, fmt.Errorf("a page of %d has %d", size, len(page.GetMessages()))
		}
		for _, hit := range page.GetMessages() {
			found = append(found, fmt.Sprintf("%s:%d", hit.GetConversationId(), hit.GetPosition()))
		}
		if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
			return found, nil
		}
	}
}

// finds waits until a search finds just that: the index follows the journal.
func (m *mesh) finds(r replica, ctx context.Context, conversation, query string, want ...string) {
	m.t.Helper()
	var got []string
	var err error
	for _, size := range []int32{1, 2, 100} {
		meshtest.Eventually(m.t, fmt.Sprintf("%q finds %v", query, want), func() bool {
			got, err = m.find(r, ctx, conversation, query, size)
			if err != nil && !fault.Is(err, fault.IndexRebuilding) {
				m.t.Fatal(err)
			}
			return err == nil && slices.Equal(got, want)
		})
	}
}

func TestSearchFindsWordsAndPhrasesInWhatTheCallerReads(t *testing.T) {
	m := newMesh(t)
	r, second := m.start(), m.start()
	m.create(r, "a")
	m.create(r, "b")
	if _, err := r.conversations.CreateConversation(m.as(eve), &conversationv1.CreateConversationRequest{ConversationId: "e"}); err != nil {
		t.Fatal(err)
	}
	m.say(r, "a", "m1", "The review moved to Friday")
	m.say(second, "b", "m1", "Friday is no review, it moved")
	m.say(r, "a", "m2", "Something else")
	if _, err := r.messages.AppendMessage(m.as(eve), &conversationv1.AppendMessageRequest{ConversationId: "e", MessageId: "m", Parts: text("the review moved")}); err != nil {
		t.Fatal(err)
	}
	for _, at := range []replica{r, second} {
		m.finds(at, m.as(ann), "", "review FRIDAY", "b:1", "a:1")
		m.finds(at, m.as(bob), "", `"review moved"`, "a:1")
		m.finds(at, m.as(ann), "b", "moved", "b:1")
		m.finds(at, m.as(eve), "", "moved", "e:1")
		m.finds(at, m.as(ann), "", "nothing")
		m.finds(at, m.asIn("umbrella", ann), "", "moved")
	}
	// Access is what it is now, not what it was when it was said.
	_, err := r.conversations.UpdateConversation(m.as(ann), &conversationv1.UpdateConversationRequest{
		ConversationId: "a", Participants: []string{eve}, UpdateMask: mask("participants"),
	})
	if err != nil {
		t.Fatal(err)
	}
	m.finds(r, m.as(bob), "", "moved", "b:1")
	m.finds(r, m.as(eve), "", "moved", "e:1", "a:1")

	_, err = r.messages.SearchMessages(m.as(bob), &conversationv1.SearchMessagesRequest{ConversationId: "a", Query: "moved"})
	wantReason(t, err, fault.ConversationNotFound)
	for _, query := range []string{`"unbalanced`, `""`, " ", "a b c d e f g h i j k l m n o p q"} {
		_, err = r.messages.SearchMessages(m.as(ann), &conversationv1.SearchMessagesRequest{Query: query})
		wantReason(t, err, fault.FieldInvalid)
	}
	_, err = r.messages.SearchMessages(m.as(ann), &conversationv1.SearchMessagesRequest{Query: "moved", PageToken: "x"})
	wantReason(t, err, fault.PageTokenInvalid)
}

// The index is made from the journal where it is missing, and goes on where it is.
func TestTheSearchIndexIsRebuiltFromTheJournal(t *testing.T) {
	m := newMesh(t)
	folder := t.TempDir()
	in := func(c *Config) { c.Index = folder }
	r := m.start(in)
	m.create(r, "c")
	m.say(r, "c", "m1", "before the stop")
	m.finds(r, m.as(ann), "", "stop", "c:1")
	r.stop()

	other := m.start()
	m.say(other, "c", "m2", "while it was stopped: stop")
	r = m.start(in)
	m.finds(r, m.as(ann), "", "stop", "c:2", "c:1")
	m.finds(other, m.as(ann), "", "stop", "c:2", "c:1")
}
