package inbox

import (
	"context"
	"errors"
	"slices"
	"strconv"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/journal"
)

// maxWalk is how many items are looked at to see that one does not wait for itself.
const maxWalk = maxOpen

// checkWaits refuses items that are not there, and any that waits for this one in the
// end: none of them would ever be finished.
func (s *dispatcher) checkWaits(ctx context.Context, key journal.Key, goal, item string, waits []string) error {
	seen := map[string]bool{}
	for next := waits; len(next) > 0; {
		var further []string
		for _, other := range next {
			if other == item {
				return fault.New(fault.StateConflict, "item %q would wait for itself", item).
					Field("waits_for", "leads back to the item")
			}
			if seen[other] {
				continue
			}
			if seen[other] = true; len(seen) > maxWalk {
				return fault.New(fault.LimitReached, "it would wait for more than %d items", maxWalk).
					Field("waits_for", "leads to more than "+strconv.Itoa(maxWalk)+" items").With("limit", strconv.Itoa(maxWalk))
			}
			found, err := s.dispatches.Read(ctx, dispatchKey(key.Tenant, goal, other))
			if err != nil {
				return err
			}
			if i := slices.Index(waits, other); i >= 0 && !found.Exists() {
				return dispatchNotFound(goal, other).Field("waits_for["+strconv.Itoa(i)+"]", "names no item of this goal")
			}
			if found.State.waits() {
				further = append(further, found.State.Awaited...)
			}
		}
		next = further
	}
	return nil
}

// refuseCircle finds what checkWaits can't see: two items that were told at the same
// time to wait for each other. Both stay where they are, and say why.
func (s *dispatcher) refuseCircle(ctx context.Context, key journal.Key, d dispatch) error {
	err := s.checkWaits(ctx, key, d.Goal, d.Item, d.Awaited)
	if !fault.Is(err, fault.StateConflict) {
		return err
	}
	_, err = s.failed(ctx, task{key: key, state: d}, err)
	return err
}

// settle records which of the awaited items are finished. It asks the journal, so
// that one which was finished before this waited for it is not missed.
func (s *dispatcher) settle(ctx context.Context, key journal.Key, d dispatch) (dispatch, error) {
	for _, item := range d.Awaited {
		other, err := s.newest(ctx, dispatchKey(key.Tenant, d.Goal, item))
		if err != nil {
			return d, err
		}
		if !other.finished() {
			continue
		}
		after, _, err := do(ctx, s.dispatches, key, decideWake, item)
		if err != nil {
			return d, err
		}
		d = after.State
	}
	return d, nil
}

// waker hears which items are finished, and drives those that wait for them.
type waker struct {
	consumer   *journal.Consumer
	dispatcher *dispatcher
}

func (w *waker) run(ctx context.Context) error { return w.consumer.Run(ctx, w.handle) }

// handle takes one event of a dispatch. It fails unless all that wait were driven, and
// the event comes again.
func (w *waker) handle(ctx context.Context, e journal.Event) error {
	recorded, err := aggregate.Decode[*inboxv1.Event](e)
	if err != nil {
		return err
	}
	judged, ended := recorded.Event.GetDispatchJudged(), recorded.Event.GetDispatchAbandoned()
	if !judged.GetAccepted() && ended == nil {
		return nil
	}
	list := waitingList(judged.GetGoal()+ended.GetGoal(), judged.GetItem()+ended.GetItem())
	var failed []error
	for token := ""; ; {
		waiting, next, err := w.dispatcher.dispatches.List(ctx, aggregate.PageRequest[dispatch]{
			Tenant: e.Key.Tenant, Lists: []string{list}, Token: token,
		})
		if err != nil {
			return errors.Join(append(failed, err)...)
		}
		for _, item := range waiting {
			_, err := w.dispatcher.drive(ctx, journal.Key{Tenant: e.Key.Tenant, Kind: dispatchKindName, ID: item.ID})
			failed = append(failed, err)
		}
		if token = next; token == "" {
			return errors.Join(failed...)
		}
	}
}
