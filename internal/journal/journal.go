// Package journal is the durable truth of a service: a JetStream stream to
// which events are appended, each as the successor of its aggregate's last one.
//
// An appended event is the commit. Nothing outside of this package publishes
// to a WEIR_ stream.
package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/internal/fault"
)

const (
	// appendAttempts bounds how often one event is sent. The first is the
	// normal case; the others resolve a lost acknowledgement.
	appendAttempts = 4
	// ackTimeout is how long an acknowledgement may take before it counts as
	// lost. A synced write takes milliseconds; a leader election, seconds.
	ackTimeout = 2 * time.Second
	// maxUnacked bounds the appends in flight from one process.
	maxUnacked = 8192
	// duplicateWindow is how long the stream remembers event ids. It only has
	// to outlive the attempts of one append; versions guard everything later.
	duplicateWindow = 2 * time.Minute
)

// ErrConflict says that another event became the successor of the expected
// version. Read what came since, decide again.
var ErrConflict = errors.New("the aggregate has a newer event")

// Journal is the stream of one service. It is safe for concurrent use.
type Journal struct {
	nc       *nats.Conn
	js       jetstream.JetStream
	service  string
	stream   string
	handle   jetstream.Stream
	replicas int
	erasable bool
	log      *slog.Logger

	bucketMu  sync.Mutex
	snapshots jetstream.KeyValue // nil until it is needed
}

// Connect opens the connection that a service's journal and consumers share.
// It does not fail when NATS is not there yet: it goes on trying, and writes
// are refused meanwhile.
//
// There is no reconnect buffer: a publish that was refused must not be sent
// behind the caller's back when the connection returns.
func Connect(url, name string) (*nats.Conn, error) {
	return nats.Connect(url,
		nats.Name("weir-"+name),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(200*time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(5*time.Second),
		nats.MaxPingsOutstanding(2),
	)
}

// Open creates the service's stream where it is missing, and waits for NATS
// until ctx ends. From such a stream no event is ever deleted: the server
// refuses it.
func Open(ctx context.Context, nc *nats.Conn, service string, replicas int, log *slog.Logger) (*Journal, error) {
	return open(ctx, nc, service, replicas, false, log)
}

// OpenErasable is Open for a service that must be able to erase events.
func OpenErasable(ctx context.Context, nc *nats.Conn, service string, replicas int, log *slog.Logger) (*Journal, error) {
	return open(ctx, nc, service, replicas, true, log)
}

func open(ctx context.Context, nc *nats.Conn, service string, replicas int, erasable bool, log *slog.Logger) (*Journal, error) {
	js, err := jetstream.New(nc,
		jetstream.WithPublishAsyncMaxPending(maxUnacked),
		jetstream.WithPublishAsyncTimeout(ackTimeout),
		jetstream.WithDefaultTimeout(ackTimeout))
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	j := &Journal{
		nc: nc, js: js, service: service, stream: StreamName(service),
		replicas: max(replicas, 1), erasable: erasable, log: log,
	}
	for first := true; ; first = false {
		if j.handle, err = j.create(ctx); err == nil {
			return j, nil
		}
		if ctx.Err() != nil || errors.Is(err, errOtherStream) {
			return nil, fmt.Errorf("journal: stream %s: %w", j.stream, err)
		}
		if first {
			log.Warn("journal not reachable yet, trying on", "stream", j.stream, "error", err)
		}
		if err := Pause(ctx, 300*time.Millisecond); err != nil {
			return nil, fmt.Errorf("journal: stream %s: %w", j.stream, err)
		}
	}
}

// errOtherStream says that a stream of the name is there, and that no waiting
// makes it the one that is needed.
var errOtherStream = errors.New("it is not the stream that this service needs")

// create makes the stream, or brings its settings up to date. Whether events can
// be deleted is settled when a stream is made: the server never allows what was
// denied once, and what one service must be able to erase, no mistake of another
// may lock for good.
func (j *Journal) create(ctx context.Context) (jetstream.Stream, error) {
	stream, err := j.js.Stream(ctx, j.stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
	case err != nil:
		return nil, err
	case stream.CachedInfo().Config.DenyDelete && j.erasable:
		return nil, fmt.Errorf("%w: it was made so that no event can ever be deleted, which NATS does not take back, "+
			"and this service must be able to erase; remove it with all its events (nats stream rm %s) and start again", errOtherStream, j.stream)
	case !stream.CachedInfo().Config.DenyDelete && !j.erasable:
		return nil, fmt.Errorf("%w: it lets single events be deleted, which this service's must not; "+
			"set its deny_delete to true, or remove it with all its events (nats stream rm %s), and start again", errOtherStream, j.stream)
	}
	return j.js.CreateOrUpdateStream(ctx, j.config())
}

// StreamName is the name of a service's stream.
func StreamName(service string) string { return "WEIR_" + strings.ToUpper(service) }

func (j *Journal) config() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        j.stream,
		Description: "weir: every state change of the " + j.service + " service",
		Subjects:    []string{"weir." + j.service + ".*.*.*"},
		Storage:     jetstream.FileStorage,
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardNew,
		Duplicates:  duplicateWindow,
		Replicas:    j.replicas,
		// Reads by subject and by sequence answer without the API queue.
		AllowDirect: true,
		DenyDelete:  !j.erasable,
	}
}

// Service is the name of the service whose events these are.
func (j *Journal) Service() string { return j.service }

// Identity tells this stream from one that had the same name before. Hot state
// that was built from another stream must not be believed.
func (j *Journal) Identity() string {
	return fmt.Sprintf("%x", j.handle.CachedInfo().Created.UnixMicro())
}

// Healthy says whether appends can succeed now.
func (j *Journal) Healthy(ctx context.Context) error {
	if !j.nc.IsConnected() {
		return unavailable(nats.ErrDisconnected)
	}
	if _, err := j.js.Stream(ctx, j.stream); err != nil {
		return unavailable(err)
	}
	return nil
}

// LastSequence is the sequence of the newest event in the whole stream.
func (j *Journal) LastSequence(ctx context.Context) (uint64, error) {
	stream, err := j.js.Stream(ctx, j.stream)
	if err != nil {
		return 0, unavailable(err)
	}
	return stream.CachedInfo().State.LastSeq, nil
}

// Append commits e as the successor of version expected (0: as the first event
// of its aggregate) and gives its sequence, which is the new version.
//
// Errors: ErrConflict when another event won; JOURNAL_UNAVAILABLE when it is
// not known to be in; TOO_LARGE. After JOURNAL_UNAVAILABLE the event may
// still have been stored: a retry of the command finds out by its own id.
func (j *Journal) Append(ctx context.Context, e Event, expected uint64) (uint64, error) {
	if err := e.Key.check(j.service); err != nil {
		return 0, err
	}
	if err := j.checkErasing(e, expected); err != nil {
		return 0, err
	}
	var last error
	sent := false // once it is, only the journal knows whether it is in
	for attempt := range appendAttempts {
		if attempt > 0 {
			if err := j.settle(ctx, attempt); err != nil {
				break
			}
		}
		// A message is used once: the client adds to its headers.
		ack, err := j.publish(ctx, e.message(j.service, expected))
		if err == nil && !ack.Duplicate {
			return ack.Sequence, nil
		}
		if errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, jetstream.ErrStreamMessageExceedsMaximum) {
			return 0, fault.New(fault.TooLarge, "the event of %d bytes is larger than the journal takes", len(e.Data)).Wrap(err)
		}
		sent = sent || !errors.Is(err, errNotSent)
		if err == nil || isWrongSequence(err) {
			sequence, err := j.resolve(ctx, e, expected)
			if err == nil || errors.Is(err, ErrConflict) {
				return sequence, err
			}
			last = err
			continue
		}
		last = err
		if !sent && !j.nc.IsConnected() {
			break // nor will it be soon
		}
	}
	if last == nil {
		last = ctx.Err()
	}
	return 0, unavailable(last)
}

// errNotSent is the failure of an event that never left this process.
var errNotSent = errors.New("not sent")

func (j *Journal) publish(ctx context.Context, msg *nats.Msg) (*jetstream.PubAck, error) {
	// Nothing is appended for who has left: the client below does not ask.
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotSent, err)
	}
	future, err := j.js.PublishMsgAsync(msg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotSent, err)
	}
	select {
	case ack := <-future.Ok():
		return ack, nil
	case err := <-future.Err():
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// settle waits a little before an event is sent again. A connection that was
// lost with the acknowledgement may return for as long as that may have taken.
func (j *Journal) settle(ctx context.Context, attempt int) error {
	if err := Pause(ctx, time.Duration(attempt)*50*time.Millisecond); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, ackTimeout)
	defer cancel()
	for !j.nc.IsConnected() {
		if err := Pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// resolve finds out who won when the stream answers that the expected version
// is not the last one, or that it has the event's id already: it may have been
// this very event, its acknowledgement lost on the way.
func (j *Journal) resolve(ctx context.Context, e Event, expected uint64) (uint64, error) {
	winner, err := j.after(ctx, e.Key.Subject(j.service), expected)
	switch {
	case errors.Is(err, errNoEvent):
		// A replicated stream refuses while a rival is in flight (10164); the
		// rival is not readable yet, and may still be this event.
		return 0, err
	case err != nil:
		return 0, err
	case winner.ID == e.ID:
		return winner.Sequence, nil
	default:
		return 0, ErrConflict
	}
}

func isWrongSequence(err error) bool {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return false
	}
	return api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant
}

func unavailable(cause error) error {
	return fault.New(fault.JournalUnavailable, "the journal cannot be reached").Retry(time.Second).Wrap(cause)
}

// Pause waits, unless ctx ends first: then it gives why.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
