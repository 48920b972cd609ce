// Package story tells how operations go from asking to done through all four services,
// as the people and agents concerned see it, and checks every step.
package story

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"weir/cmd/internal/mesh"
	"weir/internal/identity"
)

// Stage is the mesh that the story is played on.
type Stage interface {
	Addresses() mesh.Addresses
	// Token signs one that the mesh believes.
	Token(identity.Caller) (string, error)
	// Disturb does the next thing to the mesh that must not matter, and has it serving
	// again when it returns. It says in words what it did, none if the stage is one
	// that must be left in peace.
	Disturb(context.Context) (string, error)
}

// patience is how long the story waits for anything before it says that it did not
// happen.
const patience = 30 * time.Second

// chapter is a step of the story. It returns an error when there is no going on.
type chapter struct {
	title string
	play  func(*story, context.Context) error
}

// chapters are the whole story. Between any two, the stage is disturbed.
var chapters = []chapter{
	{"Before: an administrator lets Alice, an agent, ask for two operations; Omar starts a conversation", (*story).prepare},
	{"1. Alice wants to tell Bob something. That changes something, so a person is asked", (*story).ask},
	{"2. What is malformed is refused before that, and nobody is asked", (*story).askBadly},
	{"3. What Alice may not ask for, and what doesn't exist, are the same to her", (*story).askForNothing},
	{"4. Carol, a person, sees what is to run. Who may not decide is refused", (*story).look},
	{"4. … and she approves what she saw", (*story).approve},
	{"5. Nobody comes back, and the operation runs", (*story).await},
	{"6. The conversation shows the call, what was said, and the result", (*story).read},
	{"7. Bob finds the message in his inbox and claims it", (*story).claim},
	{"7. … and only the claim that holds now finishes it", (*story).finish},
	{"8. Alice gives work to Bob, and notes that she did", (*story).dispatch},
	{"8. … and, not sure whether she did, notes it again", (*story).dispatchAgain},
	{"9. Anybody can follow the events from NATS", (*story).events},
	{"10, 11. In the end, nothing is lost and nothing is there twice", (*story).recount},
	{"12. Ida keeps a checkpoint of the audit log", (*story).keepCheckpoint},
	{"12. Ann applies a policy. One that would open too much is refused", (*story).applyPolicy},
	{"13. Dave, another agent, asks for what needs two people", (*story).askTwo},
	{"13. … and the second one approves", (*story).secondVoice},
	{"14. What both wanted remembered is not asked for again, and nothing else is covered", (*story).useTrust},
	{"15. Ida proves that the record of all this is whole", (*story).auditAll},
	{"16. Omar asks Bob something, and leaves", (*story).askAndLeave},
	{"16. … Bob's handler is in the middle of the answer", (*story).watchHalf},
	{"16. … and finishes it while nobody looks", (*story).finishAnswer},
	{"17. Omar comes back: where was he, and what was written meanwhile?", (*story).comeBack},
	{"18. A conversation waits while a person is asked about what its agent wants", (*story).pause},
	{"18. … and goes on by itself", (*story).resume},
	{"19. What was said can be taken back, and all of it erased", (*story).erase},
	{"19. … from everywhere, and what forks shared of it", (*story).erased},
	{"20. Alice has weir give Bob a piece of work, and a person is asked", (*story).startWork},
	{"20. … there is one conversation, one seed and one message, and Bob finds it", (*story).workArrives},
	{"21. Bob reports that it is done", (*story).reportWork},
	{"21. … and Alice accepts it", (*story).acceptWork},
	{"22. Bob is busy, and something is urgent", (*story).beBusy},
	{"22. … of which he is told", (*story).interrupted},
	{"23. A message is too much for Bob", (*story).die},
	{"23. … and Omar sees to it", (*story).redrive},
	{"24. Omar pauses Bob's inbox", (*story).hold},
	{"24. … and opens it again", (*story).letGo},
}

// story is one telling. What later chapters need of earlier ones is in it.
type story struct {
	cast
	report
	tenant string // of its own, so that it can be told again on the same mesh
	nats   string

	approval, digest  string // what Carol is asked about
	message           string // what was said, by its id in the conversation
	delivered         string // and by its id in the inbox
	token, dispatchID string // Bob's claim, and Alice's note

	trust          string // what Dave need not ask for again
	kept, verifier string // Ida's checkpoint, and the key that it is signed with

	seen      int64  // the last position that Omar saw before he left
	pausedFor string // the approval that his conversation waits for

	workplace  string // the conversation of the work that Alice gave away
	assignment string // what told Bob of it

	disturbed int
}

// Ids in the story's tenant.
const (
	conversation = "plans"
	invocation   = "tell-bob"
	goal         = "bob"
	item         = "write the minutes"
	words        = "The review is moved to Friday."
)

// Tell tells the story and says how many checks passed and failed. It ends early where
// going on makes no sense.
func Tell(ctx context.Context, out io.Writer, stage Stage) (passed, failed int) {
	s := &story{
		report: report{out: out},
		tenant: "story-" + strings.ToLower(ulid.Make().String()),
		nats:   "nats://" + stage.Addresses().NATS,
	}
	if err := s.assemble(stage, s.tenant); err != nil {
		s.check(false, "everybody can be there: %v", err)
		return s.passed, s.failed
	}
	defer s.dismiss()
	for i, chapter := range chapters {
		if i > 0 {
			if err := s.disturb(ctx, stage); err != nil {
				s.check(false, "the mesh serves again: %v", err)
				break
			}
		}
		s.title(chapter.title)
		if err := chapter.play(s, ctx); err != nil {
			s.check(false, "the story goes on: %v", err)
			break
		}
	}
	return s.passed, s.failed
}

func (s *story) disturb(ctx context.Context, stage Stage) error {
	began := time.Now()
	did, err := stage.Disturb(ctx)
	if did != "" {
		s.disturbed++
		fmt.Fprintf(s.out, "\n   ~~ %s (%.1f s) ~~\n", did, time.Since(began).Seconds())
	}
	return err
}

// until asks again until the answer is the one hoped for, or patience ends: what one
// service does on another's events it does in its own time. It gives the last answer.
func until[T any](ctx context.Context, ask func(context.Context) (T, error), hoped func(T) bool) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		answer, err := ask(ctx)
		if err != nil || hoped(answer) {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return answer, nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}
