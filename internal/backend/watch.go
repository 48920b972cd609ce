package backend

import (
	"context"
	"errors"
	"strings"
	"time"

	"weir/internal/fault"
	"weir/internal/journal"
)

// Watch gives a tenant's events of one kind as they come, behind a resume token or,
// without one, from now on, until ctx ends. It reads the journal itself, so what it
// gives does not depend on this replica having been there. A token is a place in the
// stream; begun is told the first, before any event.
//
// An event that told cannot read is told as none: it must not end every watch from
// here on.
//
// Errors: CURSOR_UNAVAILABLE, JOURNAL_UNAVAILABLE, and what begun and told return.
func (b *Backend) Watch(ctx context.Context, tenant, kind, resume string, begun func(token string) error, told func(token string, e journal.Event) error) error {
	last, err := b.Journal.LastSequence(ctx)
	if err != nil {
		return err
	}
	after := last
	if resume != "" {
		var ok bool
		if after, ok = journal.OpenToken(tenant, resume); !ok || after > last {
			return fault.New(fault.CursorUnavailable, "the resume token is not one that this service gave").
				Field("resume_token", "must be one of an earlier answer to the same tenant, unchanged")
		}
	}
	if err := begun(journal.SealToken(tenant, after)); err != nil {
		return err
	}
	service := b.Journal.Service()
	consumer, err := b.Consumer(service, kind+"-watch", "weir."+service+"."+journal.Escape(tenant)+"."+kind+".*")
	if err != nil {
		return err
	}
	err = consumer.Tail(ctx, after+1, func(stored journal.Stored) error {
		token := journal.SealToken(tenant, stored.Sequence)
		e, err := stored.Event()
		if err == nil {
			err = told(token, e)
		}
		if err != nil && fault.From(err).Kind() == fault.KindUnreadable {
			b.Log.Error("a change cannot be told to those who watch", "subject", stored.Subject, "error", err)
			return begun(token)
		}
		return err
	}, func() {})
	if ctx.Err() != nil {
		return fault.From(ctx.Err())
	}
	if told, ok := errors.AsType[*fault.Error](err); ok {
		return told
	}
	return fault.New(fault.JournalUnavailable, "the watch was interrupted: call again with the newest token").Retry(time.Second).Wrap(err)
}

// ChangeOf is the type of an event as watches name it, such as DispatchSent.
func ChangeOf(e journal.Event) string { return e.Type[strings.LastIndex(e.Type, ".")+1:] }
