package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/backend"
	"weir/internal/journal"
)

const (
	// fillAtOnce is how many entries one event fills in.
	fillAtOnce = 1000

	rawService    = "raw"
	ledgerService = "bench"
)

// share hands the numbers below n out to callers, each its own ones, around and
// around.
type share struct{ at, step, n int }

func shares(callers, n int) []share {
	all := make([]share, callers)
	for i := range all {
		all[i] = share{at: i, step: callers, n: n}
	}
	return all
}

func (s *share) next() int {
	at := s.at
	if s.at += s.step; s.at >= s.n {
		s.at %= s.step
	}
	return at
}

// openRawPublish is what JetStream can do at best: the message that the loop
// would append, with all headers and the version check, and nothing around it.
func openRawPublish(m *mesh) (workload, error) {
	// A stream like any service's, on a connection like any service's.
	nc, err := journal.Connect(m.nats.url, rawService)
	if err != nil {
		return nil, err
	}
	m.closers = append(m.closers, nc.Close)
	if _, err := journal.Open(m.ctx, nc, rawService, 1, m.log); err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(8192))
	if err != nil {
		return nil, err
	}
	data, err := proto.Marshal(noted("x0000", entryName(0), 1_000_000))
	if err != nil {
		return nil, err
	}
	versions := make([]uint64, m.many)
	return func(callers int) ([]call, error) {
		calls := make([]call, callers)
		for i, mine := range shares(callers, m.many) {
			calls[i] = func(ctx context.Context) error {
				n := mine.next()
				ack, err := js.PublishMsgAsync(rawMessage(n, versions[n], data))
				if err != nil {
					return err
				}
				select {
				case ok := <-ack.Ok():
					versions[n] = ok.Sequence
					return nil
				case err := <-ack.Err():
					return err
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		return calls, nil
	}, nil
}

// rawMessage is what package journal makes of an event; a test holds them
// against each other.
func rawMessage(n int, expected uint64, data []byte) *nats.Msg {
	id := ulid.Make().String()
	key := ledgerKey(n)
	return &nats.Msg{
		Subject: key.Subject(rawService),
		Header: nats.Header{
			jetstream.MsgIDHeader:               {id},
			jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(expected, 10)},
			"ce-specversion":                    {"1.0"},
			"ce-id":                             {id},
			"ce-type":                           {"weir.conversation.v1.MessagesAppended"},
			"ce-source":                         {"weir/" + rawService},
			"ce-subject":                        {key.String()},
			"ce-time":                           {time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")},
			"content-type":                      {"application/protobuf"},
		},
		Data: data,
	}
}

func ledgerKey(n int) journal.Key {
	return ledgerKind().Key(tenant, fmt.Sprintf("x%04d", n))
}

// ledgers is the aggregate loop as a service has it: with its journal, its hot
// store and a projector beside it.
type ledgers struct {
	loop *aggregate.Loop[ledger, *conversationv1.Event]
}

func (m *mesh) openLedgers() (*ledgers, error) {
	if m.ledgers != nil {
		return m.ledgers, nil
	}
	b, err := backend.Open(m.ctx, ledgerService, m.stores(), m.log)
	if err != nil {
		return nil, err
	}
	m.closers = append(m.closers, b.Close)
	m.ledgers = &ledgers{aggregate.New(ledgerKind(), b.Journal, b.Hot, b.Log)}
	m.background("projector", b.Projector(m.ledgers.loop).Run)
	return m.ledgers, nil
}

// do appends one event, whatever the state.
func (l *ledgers) do(ctx context.Context, key journal.Key, event func(ledger) *conversationv1.Event) error {
	_, err := l.loop.Do(ctx, key, func(s ledger, _ time.Time) (*conversationv1.Event, error) {
		return event(s), nil
	})
	return err
}

// fill makes a ledger with so many entries.
func (l *ledgers) fill(ctx context.Context, key journal.Key, entries int) error {
	for from := 0; from < entries; from += fillAtOnce {
		var names []string
		for i := from; i < min(from+fillAtOnce, entries); i++ {
			names = append(names, entryName(i))
		}
		err := l.do(ctx, key, func(ledger) *conversationv1.Event { return filled(key.ID, names) })
		if err != nil {
			return err
		}
	}
	return nil
}

// note writes one of a ledger's entries anew.
func (l *ledgers) note(ctx context.Context, key journal.Key, entry string) error {
	return l.do(ctx, key, func(s ledger) *conversationv1.Event { return noted(key.ID, entry, s.Count+1) })
}

// openAppend appends to many ledgers that hold ten entries each.
func openAppend(m *mesh) (workload, error) {
	l, err := m.openLedgers()
	if err != nil {
		return nil, err
	}
	const entries = 10
	err = m.each(func(ctx context.Context, n int) error { return l.fill(ctx, ledgerKey(n), entries) })
	if err != nil {
		return nil, err
	}
	return func(callers int) ([]call, error) {
		calls := make([]call, callers)
		for i, mine := range shares(callers, m.many) {
			turn := 0
			calls[i] = func(ctx context.Context) error {
				turn++
				return l.note(ctx, ledgerKey(mine.next()), entryName(turn%entries))
			}
		}
		return calls, nil
	}, nil
}

// openCreate appends the first event of a new ledger each time.
func openCreate(m *mesh) (workload, error) {
	l, err := m.openLedgers()
	if err != nil {
		return nil, err
	}
	series := 0
	return func(callers int) ([]call, error) {
		calls := make([]call, callers)
		series++
		for i := range calls {
			prefix, n := fmt.Sprintf("new-%d-%d-", series, i), 0
			calls[i] = func(ctx context.Context) error {
				n++
				return l.note(ctx, ledgerKind().Key(tenant, prefix+strconv.Itoa(n)), entryName(0))
			}
		}
		return calls, nil
	}, nil
}

// openAppendOne appends to a single ledger that holds so many entries; callers
// wait for each other.
func openAppendOne(entries int) func(*mesh) (workload, error) {
	return func(m *mesh) (workload, error) {
		l, err := m.openLedgers()
		if err != nil {
			return nil, err
		}
		key := ledgerKind().Key(tenant, "of-"+strconv.Itoa(entries))
		if err := l.fill(m.ctx, key, entries); err != nil {
			return nil, err
		}
		return func(callers int) ([]call, error) {
			calls := make([]call, callers)
			for i, mine := range shares(callers, max(entries, callers)) {
				calls[i] = func(ctx context.Context) error {
					return l.note(ctx, key, entryName(mine.next()%entries))
				}
			}
			return calls, nil
		}, nil
	}
}
