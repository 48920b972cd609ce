package inbox

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/journal"
)

// importer takes over what state files hold.
type importer struct {
	inboxes    *inboxLoop
	dispatches *dispatchLoop
	journal    *journal.Journal
	log        *slog.Logger
}

func (s *inboxServer) ImportGoal(ctx context.Context, in *inboxv1.ImportGoalRequest) (*inboxv1.ImportGoalResponse, error) {
	caller, key, err := serving(ctx, in.GetGoal())
	if err != nil {
		return nil, err
	}
	file, err := readStateFile(in.GetStateJson(), s.rules.Body, s.inboxes.Now())
	if err != nil {
		return nil, err
	}
	if file.Goal != in.GetGoal() {
		return nil, malformed("goal", "must be the one that the file names, "+file.Goal)
	}
	if err := s.imports.free(ctx, key, file); err != nil {
		return nil, err
	}
	after, _, err := do(ctx, s.inboxes, key, decideImport, importGoal{
		File: file, Digest: digestOf(in.GetStateJson()), Actor: caller.Subject, Rules: s.rules,
	})
	if err != nil {
		return nil, err
	}
	if after.State.Import.open() {
		if err := s.imports.finish(ctx, key, after.State.Import.Letter); err != nil {
			return nil, err // the import stands, and weir goes on with it by itself
		}
	}
	return &inboxv1.ImportGoalResponse{Messages: int32(len(file.Messages)), Items: int32(len(file.Items))}, nil
}

// free refuses a file one of whose items was begun elsewhere, before anything is
// done. Where the inbox is there already, it is not the items that decide.
func (i *importer) free(ctx context.Context, key journal.Key, file stateFile) error {
	there, err := i.inboxes.Newest(ctx, key, aggregate.RootField)
	if err != nil || there.Exists() {
		return err
	}
	return i.each(ctx, key, file.Items, func(ctx context.Context, key journal.Key, item *inboxv1.ImportedItem) error {
		there, err := i.dispatches.Newest(ctx, key)
		if err == nil && there.Exists() {
			err = itemTaken(file.Goal, item.GetItem())
		}
		return err
	})
}

// finish takes over the items of an import, and says so in the inbox. It can be done
// again, from the beginning, as often as it fails.
func (i *importer) finish(ctx context.Context, key journal.Key, letter uint64) error {
	event, err := i.journal.Get(ctx, letter)
	if err != nil {
		return err
	}
	read, err := aggregate.Decode[*inboxv1.Event](event)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var taken []string
	file := read.Event.GetGoalImported()
	err = i.each(ctx, key, file.GetItems(), func(ctx context.Context, key journal.Key, item *inboxv1.ImportedItem) error {
		_, _, err := do(ctx, i.dispatches, key, decideImportItem, importItem{Goal: file.GetGoal(), Item: item, Actor: read.Event.GetActor()})
		if !fault.Is(err, fault.AlreadyExists) {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		taken = append(taken, item.GetItem())
		return nil
	})
	if err != nil {
		return err
	}
	if len(taken) > 0 {
		slices.Sort(taken)
		i.log.Warn("items of a state file were begun elsewhere while it was taken over, and stay as they are", "key", key.String(), "items", taken)
	}
	_, _, err = do(ctx, i.inboxes, key, decideFinishImport, finishImport{Goal: file.GetGoal(), Letter: letter, Taken: taken})
	return err
}

// each does something for all items side by side, each with the key of its aggregate.
func (i *importer) each(ctx context.Context, inbox journal.Key, items []*inboxv1.ImportedItem,
	do func(context.Context, journal.Key, *inboxv1.ImportedItem) error,
) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	for _, item := range items {
		group.Go(func() error {
			return do(ctx, dispatchKey(inbox.Tenant, inbox.ID, item.GetItem()), item)
		})
	}
	return group.Wait()
}
