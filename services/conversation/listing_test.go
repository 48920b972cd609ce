package conversation

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/meshtest"
)

// listLength is how many conversations one owner has. In full:
//
//	go test ./services/conversation -run TestTheHistoryList -listed 100000 -v
var listLength = flag.Int("listed", 1500, "conversations of the owner whose list is paged")

const (
	listPage = 50
	// Every so many conversations has the label few, or carol in it.
	fewEach   = 150
	carolEach = 100
)

// listPage gives a page as ann.
func (m *mesh) listPage(r replica, req *conversationv1.ListConversationsRequest) (ids []string, next string, err error) {
	resp, err := r.conversations.ListConversations(m.as(ann), req)
	for _, c := range resp.GetConversations() {
		ids = append(ids, c.GetConversationId())
	}
	return ids, resp.GetNextPageToken(), err
}

// turn lists all pages and calls between before each but the first.
func (m *mesh) turn(r replica, req *conversationv1.ListConversationsRequest, between func(pages int)) []string {
	m.t.Helper()
	var all []string
	for pages := 0; ; pages++ {
		ids, next, err := m.listPage(r, req)
		if err != nil {
			m.t.Fatalf("%v: %v", req, err)
		}
		if size := int(req.GetPageSize()); len(ids) > size || len(ids) < size && next != "" {
			m.t.Fatalf("a page of %d has %d conversations, then %q", size, len(ids), next)
		}
		all = append(all, ids...)
		if next == "" {
			return all
		}
		req.PageToken = next
		if between != nil {
			between(pages)
		}
	}
}

// traffic is how many bytes Redis has been sent and has sent.
func (m *mesh) traffic() int64 {
	m.t.Helper()
	client := m.redis.Client()
	defer client.Close()
	info, err := client.Info(context.Background(), "stats").Result()
	if err != nil {
		m.t.Fatal(err)
	}
	total := int64(0)
	for line := range strings.Lines(info) {
		for _, name := range []string{"total_net_input_bytes:", "total_net_output_bytes:"} {
			if digits, ok := strings.CutPrefix(line, name); ok {
				n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
				if err != nil {
					m.t.Fatal(err)
				}
				total += n
			}
		}
	}
	return total
}

// cost is what one listing moves through Redis, and how long it takes: the least of
// some, since others use the machine too.
func (m *mesh) cost(r replica, req *conversationv1.ListConversationsRequest) (bytes int64, took time.Duration) {
	m.t.Helper()
	bytes, took = 1<<62, time.Hour
	for range 10 {
		before, began := m.traffic(), time.Now()
		if _, _, err := m.listPage(r, req); err != nil {
			m.t.Fatal(err)
		}
		took = min(took, time.Since(began))
		bytes = min(bytes, m.traffic()-before)
	}
	return bytes, took
}

func TestTheHistoryListStaysRightAndCheapWhileConversationsMoveToTheTop(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	name := func(i int) string { return fmt.Sprintf("c%06d", i) }
	var making sync.WaitGroup
	for worker := range 64 {
		making.Go(func() {
			for i := worker; i < *listLength; i += 64 {
				req := &conversationv1.CreateConversationRequest{ConversationId: name(i), Participants: []string{bob}}
				if i%fewEach == 0 {
					req.Labels = []string{"few"}
				}
				if i%carolEach == 0 {
					req.Participants = append(req.Participants, carol)
				}
				if _, err := r.conversations.CreateConversation(m.as(ann), req); err != nil {
					t.Errorf("create %s: %v", name(i), err)
				}
			}
		})
	}
	making.Wait()
	if t.Failed() {
		t.FailNow()
	}

	// The oldest, the newest and one in between move while the pages are turned.
	moved := make(map[string]bool)
	all := m.turn(r, &conversationv1.ListConversationsRequest{PageSize: listPage}, func(pages int) {
		for _, i := range []int{pages, *listLength / 2, *listLength - 1 - pages} {
			moved[name(i)] = true
			m.say(r, name(i), "m"+strconv.Itoa(pages), "to the top")
		}
	})
	seen := make(map[string]int)
	for _, id := range all {
		if seen[id]++; seen[id] > 1 {
			t.Fatalf("%s is listed twice", id)
		}
	}
	for i := range *listLength {
		if id := name(i); seen[id] == 0 && !moved[id] {
			t.Fatalf("%s was left alone and is not listed", id)
		}
	}

	// The last page costs what the first does, and so do those of what few are.
	all = m.turn(r, &conversationv1.ListConversationsRequest{PageSize: listPage}, nil)
	if len(all) != *listLength {
		t.Fatalf("%d conversations are listed of %d", len(all), *listLength)
	}
	late := &conversationv1.ListConversationsRequest{PageSize: listPage}
	for range (*listLength - 1) / listPage {
		_, next, err := m.listPage(r, late)
		if err != nil {
			t.Fatal(err)
		}
		late.PageToken = next
	}
	first, took := m.cost(r, &conversationv1.ListConversationsRequest{PageSize: listPage})
	t.Logf("of %d conversations, the first page takes %v and moves %d bytes", *listLength, took, first)
	for what, req := range map[string]*conversationv1.ListConversationsRequest{
		"the last page":                 late,
		"a page by label":               {PageSize: listPage, Label: "few"},
		"a page by participant":         {PageSize: listPage, Participant: carol},
		"the newest with a participant": {PageSize: 1, Participant: bob},
	} {
		bytes, took := m.cost(r, req)
		t.Logf("%s takes %v and moves %d bytes", what, took, bytes)
		if bytes > 2*first {
			t.Errorf("%s moves %d bytes through Redis, the first page %d", what, bytes, first)
		}
	}
	for what, want := range map[string]struct {
		req  *conversationv1.ListConversationsRequest
		each int
	}{
		"label":       {&conversationv1.ListConversationsRequest{PageSize: 3, Label: "few"}, fewEach},
		"participant": {&conversationv1.ListConversationsRequest{PageSize: 3, Participant: carol}, carolEach},
	} {
		got := m.turn(r, want.req, nil)
		slices.Sort(got)
		var names []string
		for i := 0; i < *listLength; i += want.each {
			names = append(names, name(i))
		}
		if !slices.Equal(got, names) {
			t.Errorf("by %s: %v, want %v", what, got, names)
		}
	}

	// A flushed Redis comes to the same list.
	m.redis.Flush()
	meshtest.Eventually(t, "the list is rebuilt", func() bool {
		_, _, err := m.listPage(r, &conversationv1.ListConversationsRequest{PageSize: 1})
		if err != nil && status.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
		return err == nil
	})
	if again := m.turn(r, &conversationv1.ListConversationsRequest{PageSize: listPage}, nil); !slices.Equal(again, all) {
		t.Errorf("after a flush %d conversations are listed otherwise than the %d before", len(again), len(all))
	}
}
