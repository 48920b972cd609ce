package conversation

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
)

const (
	allAtOnce  = conversationv1.TurnRule_TURN_RULE_ALL
	roundRobin = conversationv1.TurnRule_TURN_RULE_ROUND_ROBIN
	moderated  = conversationv1.TurnRule_TURN_RULE_MODERATED

	declined = conversationv1.TurnOutcome_TURN_OUTCOME_DECLINED
	timedOut = conversationv1.TurnOutcome_TURN_OUTCOME_TIMED_OUT
	removed  = conversationv1.TurnOutcome_TURN_OUTCOME_REMOVED
)

// agents names some by a letter each.
func agents(letters string) (all []string) {
	for _, l := range letters {
		all = append(all, "agent:"+string(l))
	}
	return all
}

func letters(agents []string) (all string) {
	for _, a := range agents {
		all += strings.TrimPrefix(a, "agent:")
	}
	return all
}

// team is a group named g with some members; the first one moderates, if anybody does.
func team(rule conversationv1.TurnRule, members string) group {
	g := group{ID: "g", Owner: ann, Members: agents(members), Rule: rule, Timeout: time.Minute, Revision: 1}
	if rule == moderated {
		g.Moderator = g.Members[0]
	}
	return g
}

// withTeams is a conversation of ann and bob in which groups take part.
func withTeams(t rapid.TB, groups ...group) *script {
	s := newScript(t)
	cmd := creation{ID: "c", Owner: ann, Participants: []string{bob}, Groups: groups}
	for _, g := range groups {
		cmd.Participants = append(cmd.Participants, g.name())
	}
	s.must(decideCreate(s.state, cmd.normal()))
	return s
}

// tell says something to some, and gives to whom it came, by letters.
func (s *script) tell(author, id string, to ...string) string {
	s.t.Helper()
	return s.addressed(s.must(s.run(saying(s.t, author, id, func(m *conversationv1.NewMessage) { m.To = to }))))
}

// reply answers a message, "" for whatever waits.
func (s *script) reply(author, id, to string) {
	s.t.Helper()
	s.must(s.run(saying(s.t, author, id, func(m *conversationv1.NewMessage) { m.ReplyTo = to })))
}

func (s *script) decline(member, message string) string {
	s.t.Helper()
	return s.addressed(s.must(decideDecline(s.state, decline{ID: "c", MessageID: message, Member: member, Note: "busy"})))
}

// late lets some time go by and gives to whom messages are handed on then.
func (s *script) late(by time.Duration) string {
	s.t.Helper()
	s.now = s.now.Add(by)
	return s.addressed(s.must(decideLate(s.state, "c", s.now), nil))
}

func (s *script) regroup(newer group) string {
	s.t.Helper()
	return s.addressed(s.must(decideRegroup(s.state, "c", newer), nil))
}

// addressed is to whom the messages of an event come, by letters; messages apart by a space.
func (s *script) addressed(event *conversationv1.Event) string {
	var all []string
	for _, r := range heldBy(aggregate.Recorded[*conversationv1.Event]{Event: proto.CloneOf(event)}, 0).Messages {
		all = append(all, letters(r.GetMessage().GetAddressed()))
	}
	return strings.Join(all, " ")
}

// waiting is who is to answer what, as message:letters.
func (s *script) waiting() string {
	var all []string
	for _, t := range s.state.Turns {
		all = append(all, t.MessageID+":"+letters(t.Waiting))
	}
	return strings.Join(all, " ")
}

func want(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: %q, want %q", what, got, want)
	}
}

func TestWhoAMessageToAGroupGoesTo(t *testing.T) {
	for name, c := range map[string]struct {
		group
		author string
		want   string
	}{
		"all":                                {team(allAtOnce, "xyz"), ann, "xyz"},
		"all but the author":                 {team(allAtOnce, "xyz"), "agent:y", "xz"},
		"all, where the author is alone":     {team(allAtOnce, "x"), "agent:x", ""},
		"a round begins with the first":      {team(roundRobin, "xyz"), ann, "x"},
		"a round passes over the author":     {team(roundRobin, "xyz"), "agent:x", "y"},
		"a round, where the author is alone": {team(roundRobin, "x"), "agent:x", ""},
		"the moderator":                      {team(moderated, "xyz"), ann, "x"},
		"the moderator, from a member":       {team(moderated, "xyz"), "agent:z", "x"},
		"from the moderator to the others":   {team(moderated, "xyz"), "agent:x", "yz"},
		"a moderator who is alone":           {team(moderated, "x"), "agent:x", ""},
		"nobody is left":                     {group{ID: "g", Rule: allAtOnce, Revision: 2}, ann, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := withTeams(t, c.group)
			if len(c.Members) == 0 {
				c.author = bob
			}
			want(t, "addressed", s.tell(c.author, "m1", "group:g"), c.want)
			waits := ""
			if c.want != "" {
				waits = "m1:" + c.want
			}
			want(t, "waiting", s.waiting(), waits)
		})
	}
}

func TestWhoIsAddressedTwiceIsAddressedOnce(t *testing.T) {
	other := team(allAtOnce, "yz")
	other.ID = "h"
	s := withTeams(t, team(allAtOnce, "xy"), other)
	want(t, "by name and by two groups", s.tell(ann, "m1", "agent:y", "group:g", "group:h", "agent:x"), "yxz")
	// One answer is an answer to that message, whichever groups it was said to.
	want(t, "turns", s.waiting(), "m1:xy m1:yz")
	s.reply("agent:y", "a1", "m1")
	want(t, "after an answer", s.waiting(), "m1:x m1:z")
}

func TestARoundGoesOnFromMessageToMessage(t *testing.T) {
	s := withTeams(t, team(roundRobin, "xyz"))
	var got []string
	for i, author := range []string{ann, ann, "agent:z", ann, "agent:x", ann} {
		id := fmt.Sprint("m", i)
		got = append(got, s.tell(author, id, "group:g"))
	}
	want(t, "rounds", strings.Join(got, ""), "xyxyzx")

	// Several messages at once take a turn each.
	batch := saying(t, ann, "b1", func(m *conversationv1.NewMessage) { m.To = []string{"group:g"} })
	batch.Messages = append(batch.Messages, saying(t, ann, "b2", func(m *conversationv1.NewMessage) { m.To = []string{"group:g"} }).Messages[0])
	want(t, "a batch", s.addressed(s.must(s.run(batch))), "y z")
}

func TestARoundHandsOnUntilEachHadTheTurn(t *testing.T) {
	for name, passes := range map[string]func(s *script, member string) string{
		"declined":  func(s *script, member string) string { return s.decline(member, "m1") },
		"timed out": func(s *script, _ string) string { return s.late(time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			s := withTeams(t, team(roundRobin, "wxyz"))
			want(t, "first", s.tell("agent:x", "m1", "group:g"), "w")
			want(t, "then", passes(s, "agent:w"), "y") // x asked
			want(t, "then", passes(s, "agent:y"), "z")
			want(t, "last", passes(s, "agent:z"), "")
			want(t, "waiting", s.waiting(), "")
			if event := decideLate(s.state, "c", s.now.Add(time.Hour)); event != nil {
				t.Fatalf("what is over ends again: %v", event)
			}
		})
	}
}

// The next one is asked by the record, and may answer either.
func TestAnAnswerToTheRecordThatHandedAMessageOnIsAnAnswer(t *testing.T) {
	for _, to := range []string{"m1", turnID("m1", "g", "agent:x"), ""} {
		s := withTeams(t, team(roundRobin, "xyz"))
		s.tell(ann, "m1", "group:g")
		s.decline("agent:x", "m1")
		s.reply("agent:y", "a1", to)
		want(t, "waiting after an answer to "+to, s.waiting(), "")
	}
	s := withTeams(t, team(roundRobin, "xyz"))
	s.tell(ann, "m0")
	s.tell(ann, "m1", "group:g")
	s.reply("agent:x", "a1", "m0")
	want(t, "waiting after an answer to something else", s.waiting(), "m1:x")
	s.reply("agent:y", "a2", "m1")
	want(t, "waiting after another one's answer", s.waiting(), "m1:x")
}

func TestACallAloneIsNoAnswer(t *testing.T) {
	s := withTeams(t, team(allAtOnce, "xy"))
	s.tell(ann, "m1", "group:g")
	s.must(s.run(saying(t, "agent:x", "call", func(m *conversationv1.NewMessage) { m.Parts = []*conversationv1.Part{toolCall("t")} })))
	s.must(s.run(saying(t, "agent:x", "end", func(m *conversationv1.NewMessage) { m.Parts = []*conversationv1.Part{toolResult("t")} })))
	want(t, "waiting", s.waiting(), "m1:xy")
	s.reply("agent:x", "a1", "")
	want(t, "waiting", s.waiting(), "m1:y")
}

func TestAnAnswerWithoutANameIsToTheOldestThatWaits(t *testing.T) {
	s := withTeams(t, team(allAtOnce, "xy"))
	s.tell(ann, "m1", "group:g")
	s.tell(ann, "m2", "group:g")
	s.reply("agent:x", "a1", "")
	want(t, "waiting", s.waiting(), "m1:y m2:xy")
	s.reply("agent:y", "a2", "m2")
	want(t, "waiting", s.waiting(), "m1:y m2:x")
}

// Members whose time is over together are recorded each, and what is handed on goes to
// one member once.
func TestTurnsThatEndTogether(t *testing.T) {
	s := withTeams(t, team(roundRobin, "vwxyz"))
	s.tell(ann, "m1", "group:g")
	s.tell(ann, "m2", "group:g")
	want(t, "both handed on", s.late(time.Minute), "x y")
	want(t, "waiting", s.waiting(), "m1:x m2:y")
	if event := decideLate(s.state, "c", s.now.Add(time.Minute-time.Nanosecond)); event != nil {
		t.Fatalf("their time is not over, and ends by %v", event)
	}

	s = withTeams(t, team(allAtOnce, "xyz"))
	s.tell(ann, "m1", "group:g")
	newer := team(roundRobin, "wxyz")
	newer.Revision = 2
	s.regroup(newer)
	want(t, "all at once stays so", s.late(time.Minute), "  ")
	for _, r := range s.journalled() {
		if n := r.GetMessage().GetParts()[0].GetTurn(); n != nil && n.GetOutcome() != timedOut {
			t.Errorf("recorded as %v", n)
		}
	}
}

// journalled are all messages, as the journal holds them.
func (s *script) journalled() (all []*conversationv1.Replaced) {
	for position := range s.state.Head {
		at, _ := s.state.place(position + 1)
		m, _ := s.holder(at.Sequence).at(position + 1)
		all = append(all, &conversationv1.Replaced{Position: position + 1, Message: m})
	}
	return all
}

func TestWhoDeclinesWhat(t *testing.T) {
	s := withTeams(t, team(roundRobin, "xyz"))
	s.tell(ann, "m0")
	s.tell(ann, "m1", "group:g")
	for name, c := range map[string]struct {
		decline
		want fault.Reason
	}{
		"somebody else's turn": {decline{ID: "c", MessageID: "m1", Member: "agent:y"}, fault.NotYourTurn},
		"the author's":         {decline{ID: "c", MessageID: "m1", Member: ann}, fault.NotYourTurn},
		"what was said to all": {decline{ID: "c", MessageID: "m0", Member: "agent:x"}, fault.NotYourTurn},
		"what is not there":    {decline{ID: "c", MessageID: "m9", Member: "agent:x"}, fault.MessageNotFound},
		"a stranger":           {decline{ID: "c", MessageID: "m1", Member: eve}, fault.ConversationNotFound},
	} {
		event, err := decideDecline(s.state, c.decline)
		if event != nil || fault.ReasonOf(err) != c.want {
			t.Errorf("%s: decided %v, %v; want %s", name, event, err, c.want)
		}
	}
	s.decline("agent:x", "m1")
	record := s.journalled()[2].GetMessage()
	// Its words are the member's: they are erased with all else that it said.
	if n := record.GetParts()[0].GetTurn(); record.GetAuthor() != "agent:x" || record.GetReplyTo() != "m1" ||
		n.GetOutcome() != declined || n.GetGroup() != "group:g" || n.GetMember() != "agent:x" || n.GetNote() != "busy" {
		t.Fatalf("recorded %v", record)
	}
	if event, err := decideDecline(s.state, decline{ID: "c", MessageID: "m1", Member: "agent:x"}); event != nil || err != nil {
		t.Fatalf("again: decided %v, %v", event, err)
	}
	s.must(decideStep(s.state, step{ID: "c", Actor: ann, To: closed}))
	_, err := decideDecline(s.state, decline{ID: "c", MessageID: "m1", Member: "agent:y"})
	wantReason(t, err, fault.ConversationClosed)
	if event, err := decideDecline(s.state, decline{ID: "c", MessageID: "m1", Member: "agent:x"}); event != nil || err != nil {
		t.Fatalf("a retry after the end: decided %v, %v", event, err)
	}
}

func TestADeclineIsForAllGroupsThatAMessageWasSaidTo(t *testing.T) {
	other := team(roundRobin, "xz")
	other.ID = "h"
	s := withTeams(t, team(allAtOnce, "xy"), other)
	s.tell(ann, "m1", "group:g", "group:h")
	want(t, "handed on by", s.decline("agent:x", "m1"), " z")
	want(t, "waiting", s.waiting(), "m1:y m1:z")
}

func TestAMemberThatIsRemovedLosesItsTurn(t *testing.T) {
	change := func(rule conversationv1.TurnRule, members string) group {
		g := team(rule, members)
		g.Revision = 2
		return g
	}
	for name, c := range map[string]struct {
		before, after group
		addressed     string
		waiting       string
	}{
		"of all":                     {team(allAtOnce, "wxyz"), change(allAtOnce, "xz"), " ", "m1:xz"},
		"of a round":                 {team(roundRobin, "xyz"), change(roundRobin, "yz"), "y", "m1:y"},
		"of a round, and the next":   {team(roundRobin, "xyz"), change(roundRobin, "z"), "z", "m1:z"},
		"all of a round":             {team(roundRobin, "xyz"), change(roundRobin, "w"), "w", "m1:w"},
		"somebody else":              {team(roundRobin, "xyz"), change(roundRobin, "xy"), "", "m1:x"},
		"the moderator":              {team(moderated, "xyz"), change(moderated, "yz"), "y", "m1:y"},
		"a round is moderated now":   {team(roundRobin, "xyz"), change(moderated, "zy"), "z", "m1:z"},
		"the group is without any":   {team(allAtOnce, "xyz"), group{ID: "g", Revision: 2}, "  ", ""},
		"a round is without any":     {team(roundRobin, "xyz"), group{ID: "g", Revision: 2}, "", ""},
		"a moderated one has no any": {team(moderated, "xyz"), group{ID: "g", Revision: 2}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := withTeams(t, c.before)
			s.tell(ann, "m1", "group:g")
			want(t, "addressed", s.regroup(c.after), c.addressed)
			want(t, "waiting", s.waiting(), c.waiting)
			for _, r := range s.journalled()[1:] {
				if n := r.GetMessage().GetParts()[0].GetTurn(); n.GetOutcome() != removed || r.GetMessage().GetAuthor() != self {
					t.Errorf("recorded as %v", r)
				}
			}
			if event := decideRegroup(s.state, "c", c.after); event != nil {
				t.Errorf("heard again: %v", event)
			}
			old := c.before
			if event := decideRegroup(s.state, "c", old); event != nil {
				t.Errorf("an older form is taken: %v", event)
			}
		})
	}
}

func TestARoundGoesOnWhereItWasAfterMembersChanged(t *testing.T) {
	for _, c := range []struct{ had, after, next string }{
		{"x", "wxyz", "y"},  // who had it stays
		{"y", "wxz", "z"},   // who had it leaves
		{"y", "wz", "z"},    // and the one before it
		{"w", "xyz", "x"},   // the first one leaves
		{"z", "wxy", "w"},   // the last one leaves
		{"x", "wxvyz", "v"}, // somebody comes in behind it
		{"x", "zyxw", "w"},  // another order
	} {
		s := withTeams(t, team(roundRobin, "wxyz"))
		for i := range 4 {
			if s.tell(ann, fmt.Sprint("m", i), "group:g") == c.had {
				break
			}
		}
		for i, turn := range slices.Clone(s.state.Turns) {
			s.reply(turn.Waiting[0], fmt.Sprint("a", i), turn.MessageID)
		}
		newer := team(roundRobin, c.after)
		newer.Revision = 2
		s.regroup(newer)
		want(t, "after "+c.had+", among "+c.after, s.tell(ann, "m9", "group:g"), c.next)
	}
}

// While a conversation is paused nobody could answer.
func TestNoTurnEndsWhileAConversationIsPaused(t *testing.T) {
	s := withTeams(t, team(roundRobin, "xy"))
	s.tell(ann, "m1", "group:g")
	for _, approval := range []string{"p1", "p2"} {
		s.must(s.run(telling(bob, askNote(&conversationv1.ApprovalNote{ApprovalId: approval, State: pending}))))
	}
	if due := s.state.due(); !due.IsZero() {
		t.Fatalf("it is due at %v", due)
	}
	s.now = s.now.Add(time.Hour)
	if event := decideLate(s.state, "c", s.now); event != nil {
		t.Fatalf("a turn ended: %v", event)
	}
	_, err := decideDecline(s.state, decline{ID: "c", MessageID: "m1", Member: "agent:x"})
	wantReason(t, err, fault.ConversationPaused)
	for _, approval := range []string{"p1", "p2"} {
		if due := s.state.due(); !due.IsZero() {
			t.Fatalf("it is due at %v while %s is pending", due, approval)
		}
		s.must(s.run(telling("", answerNote(&conversationv1.ApprovalNote{ApprovalId: approval, State: "DENIED"}))))
	}
	if due, want := s.state.due(), s.now.Add(time.Minute); !due.Equal(want) {
		t.Fatalf("it is due at %v, want the whole time again, %v", due, want)
	}
	want(t, "then", s.late(time.Minute), "y")
}

func TestATurnWhoseMessageIsRedactedIsOver(t *testing.T) {
	s := withTeams(t, team(roundRobin, "xyz"))
	s.tell(ann, "m1", "group:g")
	s.tell(ann, "m2", "group:g")
	s.must(s.redact(redaction{Actor: ann, MessageID: "m1"}))
	want(t, "waiting", s.waiting(), "m2:y")
	_, err := decideDecline(s.state, decline{ID: "c", MessageID: "m1", Member: "agent:x"})
	wantReason(t, err, fault.NotYourTurn)
	// What came of the other one stays when the record of it is erased.
	s.decline("agent:y", "m2")
	s.must(s.redact(redaction{Actor: "agent:y", MessageID: turnID("m2", "g", "agent:y")}))
	want(t, "waiting", s.waiting(), "m2:z")
	want(t, "the round goes on", s.tell(ann, "m3", "group:g"), "x")
}

// The answer's words are erased, and the conversation goes on as it did.
func TestAnErasedAnswerWasGivenAllTheSame(t *testing.T) {
	s := started(t)
	s.must(s.run(telling(bob, askNote(&conversationv1.ApprovalNote{ApprovalId: "p", State: pending}))))
	s.must(s.run(telling("", answerNote(&conversationv1.ApprovalNote{ApprovalId: "p", State: "DENIED", DecidedBy: "human:carol", Note: "words"}))))
	s.tell(ann, "m1")
	s.must(s.redact(redaction{Actor: "human:carol", Eraser: true, MessageID: answerID("p")}))
	if len(s.state.Pauses) != 0 || len(s.replay().Pauses) != 0 {
		t.Fatalf("it waits for %v, and %v when read from the journal", s.state.Pauses, s.replay().Pauses)
	}
}

func TestTheLimitOfOpenTurns(t *testing.T) {
	s := withTeams(t, team(allAtOnce, "xy"))
	for i := range maxTurns {
		s.tell(ann, fmt.Sprint("m", i), "group:g")
	}
	over := saying(t, ann, "over", func(m *conversationv1.NewMessage) { m.To = []string{"group:g"} })
	_, err := s.run(over)
	wantReason(t, err, fault.LimitReached)
	s.reply("agent:x", "a1", "m7")
	s.reply("agent:y", "a2", "m7")
	s.must(s.run(over))
}

// A group's newer form comes with the records of who lost a turn by it, so an update of
// the participants leaves it as it is.
func TestAnUpdateOfTheParticipantsLeavesGroupsAsTheyWere(t *testing.T) {
	s := withTeams(t, team(allAtOnce, "xy"))
	s.tell(ann, "m1", "group:g")
	newer := team(allAtOnce, "y")
	newer.Revision = 2
	s.must(decideUpdate(s.state, update{ID: "c", Actor: ann, Participants: &[]string{"group:g"}, Groups: []group{newer}}))
	want(t, "members", letters(s.state.Groups[0].Members), "xy")
	want(t, "records", s.regroup(newer), "")
	if n := s.journalled()[1].GetMessage().GetParts()[0].GetTurn(); n.GetMember() != "agent:x" || n.GetOutcome() != removed {
		t.Fatalf("recorded %v", n)
	}
	s.must(decideUpdate(s.state, update{ID: "c", Actor: ann, Participants: &[]string{bob}}))
	want(t, "waiting without the group", s.waiting(), "")
}

// What is imported asks nobody: it was answered, or not, where it was said.
func TestWhatIsImportedWaitsForNobody(t *testing.T) {
	s := withTeams(t, team(allAtOnce, "xy"))
	old := func(m message) message { m.Time = s.now.Add(-time.Hour); return m.signed() }
	said := saying(t, ann, "m1", func(m *conversationv1.NewMessage) { m.To = []string{"group:g"} }).Messages[0]
	odd := note("m2", self, "", &conversationv1.Part{Part: &conversationv1.Part_Turn{Turn: &conversationv1.TurnNote{}}})
	asked := askNote(&conversationv1.ApprovalNote{ApprovalId: "p", State: pending})
	s.must(s.run(appendage{Conversation: "c", origin: imported, Messages: []message{old(said), old(odd), old(asked)}}))
	if len(s.state.Turns) != 0 || len(s.state.Pauses) != 0 {
		t.Fatalf("it waits for %v and %v", s.state.Turns, s.state.Pauses)
	}
}

// Whatever happens to a group, nobody is handed one message twice, and a turn that
// ended is either answered or recorded.
func TestEachMemberIsAskedOncePerMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := rapid.SampledFrom([]conversationv1.TurnRule{allAtOnce, roundRobin, moderated})
		g := team(rules.Draw(t, "rule"), "vwxyz")
		s := withTeams(t, g)
		asked, messages := map[string]bool{}, 0
		note := func(event *conversationv1.Event) {
			if event == nil {
				return
			}
			for _, r := range heldBy(aggregate.Recorded[*conversationv1.Event]{Event: proto.CloneOf(event)}, 0).Messages {
				about := r.GetMessage().GetMessageId()
				if n := r.GetMessage().GetParts()[0].GetTurn(); n != nil {
					about = n.GetMessageId()
				}
				for _, to := range r.GetMessage().GetAddressed() {
					if asked[about+to] {
						t.Fatalf("%s is asked twice about %s", to, about)
					}
					asked[about+to] = true
				}
			}
			s.follow(event)
		}
		member := rapid.SampledFrom(agents("vwxyz"))
		message := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint("m", rapid.IntRange(0, max(0, messages-1)).Draw(t, "n")) })
		t.Repeat(map[string]func(*rapid.T){
			"say": func(t *rapid.T) {
				author := rapid.SampledFrom(append(agents("vw"), ann)).Draw(t, "author")
				if !s.state.isMember(author) {
					return
				}
				event, err := s.run(saying(t, author, fmt.Sprint("m", messages), func(m *conversationv1.NewMessage) { m.To = []string{"group:g"} }))
				if err == nil {
					messages++
					note(event)
				}
			},
			"decline": func(t *rapid.T) {
				event, err := decideDecline(s.state, decline{ID: "c", MessageID: message.Draw(t, "message"), Member: member.Draw(t, "member")})
				if err == nil {
					note(event)
				}
			},
			"late": func(t *rapid.T) {
				s.now = s.now.Add(time.Duration(rapid.IntRange(1, 61).Draw(t, "seconds")) * time.Second)
				note(decideLate(s.state, "c", s.now))
			},
			"change": func(t *rapid.T) {
				g = team(rules.Draw(t, "rule"), letters(rapid.SliceOfNDistinct(member, 1, 5, rapid.ID).Draw(t, "members")))
				g.Revision = s.revision() + 1
				note(decideRegroup(s.state, "c", g))
			},
			"": func(t *rapid.T) {
				for _, turn := range s.state.Turns {
					for _, w := range turn.Waiting {
						if !asked[turn.MessageID+w] || !slices.Contains(g.Members, w) {
							t.Fatalf("%s is to answer %s, and was asked: %v", w, turn.MessageID, asked[turn.MessageID+w])
						}
					}
				}
			},
		})
	})
}
