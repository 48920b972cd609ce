package main

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/identity"
	"weir/internal/serve"
)

const (
	// streamsPerConnection keeps below what a server lets one connection have.
	streamsPerConnection = 500
	// openedAtOnce bounds the conversations and tails that are begun side by side.
	openedAtOnce = 32
	// patience is how long the readers may take for what was written last.
	patience = 30 * time.Second
	samples  = 6
)

// run starts the servers, lets everybody write and read, and counts.
func run(ctx context.Context, o options, progress io.Writer) (_ *result, err error) {
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Dir, "load-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	redis, err := startRedis(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, redis.stop()) }()
	nats, err := startRole(ctx, "nats", filepath.Join(dir, "nats"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, nats.stop()) }()
	tokens, err := newTokens(dir)
	if err != nil {
		return nil, err
	}
	service, err := startRole(ctx, "service", nats.addr, redis.addr, tokens.jwks)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, service.stop()) }()

	l := &load{options: o, service: service, tokens: tokens, seed: maphash.MakeSeed(), progress: progress}
	defer l.close()
	return l.run(ctx)
}

// tokens signs what the callers come with.
type tokens struct {
	dir, jwks string
	signer    *identity.Signer
}

func newTokens(dir string) (*tokens, error) {
	signer, err := identity.NewSigner()
	if err != nil {
		return nil, err
	}
	t := &tokens{dir: dir, jwks: filepath.Join(dir, "jwks.json"), signer: signer}
	return t, signer.WriteJWKS(t.jwks)
}

func (t *tokens) file(subject string) (string, error) {
	token, err := t.signer.Issue(identity.Caller{
		Tenant: "load", Subject: subject, Scopes: []string{"conversation.read", "conversation.write"},
	}, "weir", time.Hour)
	if err != nil {
		return "", err
	}
	path := filepath.Join(t.dir, "token-"+strings.ReplaceAll(subject, ":", "-"))
	return path, os.WriteFile(path, []byte(token), 0o600)
}

// load is one run.
type load struct {
	options
	service  *process
	tokens   *tokens
	seed     maphash.Seed
	progress io.Writer

	connections []*grpc.ClientConn
	talks       []*talk
	counts      counts
	append      durations
	delivery    durations
}

type counts struct {
	written, delivered, errors, lost, repeated, strange atomic.Int64
	first                                               atomic.Pointer[error]
}

func (c *counts) fail(err error) {
	c.errors.Add(1)
	c.first.CompareAndSwap(nil, &err)
}

// talk is one conversation.
type talk struct {
	id string
	mu sync.Mutex
	// said are the hashes of the message ids that were acknowledged, by position - 1.
	said []uint64
	// read is how far each of its readers has come.
	read []*reader
}

func (t *talk) put(m *conversationv1.Message, id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for int64(len(t.said)) < m.GetPosition() {
		t.said = append(t.said, 0)
	}
	t.said[m.GetPosition()-1] = id
}

// reader is one tail: the hashes of what it was given, in order.
type reader struct {
	mu    sync.Mutex
	given []uint64
}

func (l *load) close() {
	for _, c := range l.connections {
		_ = c.Close()
	}
}

func (l *load) dial(subject string) (*grpc.ClientConn, error) {
	file, err := l.tokens.file(subject)
	if err != nil {
		return nil, err
	}
	c, err := serve.Dial(l.service.addr, serve.DialConfig{TokenFile: file})
	if err == nil {
		l.connections = append(l.connections, c)
	}
	return c, err
}

func (l *load) run(ctx context.Context) (*result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := l.create(ctx); err != nil {
		return nil, err
	}
	var tails sync.WaitGroup
	if err := l.tail(ctx, &tails); err != nil {
		return nil, err
	}
	fmt.Fprintf(l.progress, "%d tails are open\n", l.Conversations*l.Tails)
	memory, measured := l.measure(ctx)
	if err := l.write(ctx); err != nil {
		return nil, err
	}
	if err := <-measured; err != nil {
		return nil, err
	}
	ended := time.Now()
	for time.Since(ended) < patience && !l.drained() {
		time.Sleep(10 * time.Millisecond)
	}
	drained := time.Since(ended)
	final, err := l.service.memory()
	if err != nil {
		return nil, err
	}
	cancel()
	tails.Wait()
	l.judge()
	r := &result{
		options: l.options, written: l.counts.written.Load(), delivered: l.counts.delivered.Load(),
		errors: l.counts.errors.Load(), lost: l.counts.lost.Load(), repeated: l.counts.repeated.Load(), strange: l.counts.strange.Load(),
		append: l.append.typical(), delivery: l.delivery.typical(), drained: drained,
		memory: append(*memory, sample{l.For + drained, final}),
	}
	if first := l.counts.first.Load(); first != nil {
		r.firstError = *first
	}
	return r, nil
}

// create makes the conversations, once the service answers.
func (l *load) create(ctx context.Context) error {
	c, err := l.dial(owner)
	if err != nil {
		return err
	}
	client := conversationv1.NewConversationServiceClient(c)
	var participants []string
	for w := range l.Writers {
		participants = append(participants, writer(w))
	}
	for i := range l.Conversations {
		l.talks = append(l.talks, &talk{id: "talk-" + strconv.Itoa(i)})
	}
	return sideBySide(l.Conversations, func(i int) error {
		_, err := client.CreateConversation(ctx, &conversationv1.CreateConversationRequest{
			ConversationId: l.talks[i].id, Participants: participants,
		}, grpc.WaitForReady(true))
		return err
	})
}

const owner = "human:owner"

func writer(w int) string { return "agent:writer-" + strconv.Itoa(w) }

// tail opens all tails, and waits until the service took each.
func (l *load) tail(ctx context.Context, open *sync.WaitGroup) error {
	n := l.Conversations * l.Tails
	clients := make([]conversationv1.MessageServiceClient, (n+streamsPerConnection-1)/streamsPerConnection)
	for i := range clients {
		c, err := l.dial(owner)
		if err != nil {
			return err
		}
		clients[i] = conversationv1.NewMessageServiceClient(c)
	}
	for _, t := range l.talks {
		for range l.Tails {
			t.read = append(t.read, &reader{})
		}
	}
	return sideBySide(n, func(i int) error {
		t := l.talks[i%len(l.talks)]
		// From the start, so that nothing depends on when it begins.
		after := int64(0)
		stream, err := clients[i%len(clients)].TailMessages(ctx, &conversationv1.TailMessagesRequest{ConversationId: t.id, After: &after})
		if err != nil {
			return err
		}
		open.Go(func() { l.follow(ctx, t.read[i/len(l.talks)], stream) })
		return nil
	})
}

// follow reads one tail to the end of the run.
func (l *load) follow(ctx context.Context, r *reader, stream grpc.ServerStreamingClient[conversationv1.TailMessagesResponse]) {
	for {
		resp, err := stream.Recv()
		if err != nil {
			if ctx.Err() == nil {
				l.counts.fail(fmt.Errorf("tail: %w", err))
			}
			return
		}
		m := resp.GetMessage()
		if m == nil {
			continue
		}
		l.counts.delivered.Add(1)
		if at, err := strconv.ParseInt(m.GetParts()[0].GetText(), 10, 64); err == nil {
			l.delivery.add(time.Since(time.Unix(0, at)))
		}
		r.mu.Lock()
		switch next := int64(len(r.given)) + 1; {
		case m.GetPosition() < next:
			l.counts.repeated.Add(1)
		case m.GetPosition() > next:
			l.counts.lost.Add(m.GetPosition() - next)
			for int64(len(r.given)) < m.GetPosition()-1 {
				r.given = append(r.given, 0)
			}
			fallthrough
		default:
			r.given = append(r.given, l.hash(m.GetMessageId()))
		}
		r.mu.Unlock()
	}
}

func (l *load) hash(id string) uint64 { return maphash.String(l.seed, id) }

// write lets every writer say something in its turn, at the pace that makes the rate
// of all together.
func (l *load) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.For)
	defer cancel()
	pause := time.Duration(float64(l.Conversations*l.Writers) / l.Rate * float64(time.Second))
	var writing sync.WaitGroup
	for w := range l.Writers {
		c, err := l.dial(writer(w))
		if err != nil {
			return err
		}
		client := conversationv1.NewMessageServiceClient(c)
		for i, t := range l.talks {
			// Their turns are spread over the pause.
			turn := time.Duration(float64(pause) * float64(i*l.Writers+w) / float64(len(l.talks)*l.Writers))
			writing.Go(func() { l.speak(ctx, client, t, w, turn, pause) })
		}
	}
	writing.Wait()
	return nil
}

// speak is one writer.
func (l *load) speak(ctx context.Context, client conversationv1.MessageServiceClient, t *talk, w int, turn, pause time.Duration) {
	timer := time.NewTimer(turn)
	defer timer.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(pause)
		id := fmt.Sprintf("m-%d-%d", w, n)
		began := time.Now()
		// What is begun is finished, so that every message is known to be there or not.
		resp, err := client.AppendMessage(context.WithoutCancel(ctx), &conversationv1.AppendMessageRequest{
			ConversationId: t.id, MessageId: id,
			Parts: []*conversationv1.Part{{Part: &conversationv1.Part_Text{Text: strconv.FormatInt(began.UnixNano(), 10)}}},
		})
		if err != nil {
			l.counts.fail(fmt.Errorf("append: %w", err))
			continue
		}
		l.append.add(time.Since(began))
		l.counts.written.Add(1)
		t.put(resp.GetMessage(), l.hash(id))
	}
}

// measure reads the service's memory while the writers write.
func (l *load) measure(ctx context.Context) (*[]sample, <-chan error) {
	taken, done := new([]sample), make(chan error, 1)
	began := time.Now()
	go func() {
		for i := range samples {
			bytes, err := l.service.memory()
			if err != nil {
				done <- err
				return
			}
			*taken = append(*taken, sample{time.Since(began), bytes})
			if i == samples-1 {
				break
			}
			select {
			case <-time.After(l.For / samples):
			case <-ctx.Done():
			}
		}
		done <- nil
	}()
	return taken, done
}

// drained says whether every reader has been given all that was acknowledged.
func (l *load) drained() bool {
	for _, t := range l.talks {
		for _, r := range t.read {
			r.mu.Lock()
			behind := len(r.given) < len(t.said)
			r.mu.Unlock()
			if behind {
				return false
			}
		}
	}
	return true
}

// judge compares what each reader was given with what was acknowledged, once all
// have stopped.
func (l *load) judge() {
	for _, t := range l.talks {
		for _, r := range t.read {
			l.counts.lost.Add(int64(max(0, len(t.said)-len(r.given))))
			for i, id := range t.said {
				// A place without an acknowledgement belongs to one that failed.
				if i < len(r.given) && id != 0 && r.given[i] != 0 && r.given[i] != id {
					l.counts.strange.Add(1)
				}
			}
		}
	}
}

// durations keeps how long things took.
type durations struct {
	mu  sync.Mutex
	all []time.Duration
}

func (d *durations) add(one time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, one)
}

// typical is the median, and what 99 of 100 took at most.
func (d *durations) typical() [2]time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.all) == 0 {
		return [2]time.Duration{}
	}
	slices.Sort(d.all)
	return [2]time.Duration{d.all[len(d.all)/2].Round(10 * time.Microsecond), d.all[len(d.all)*99/100].Round(10 * time.Microsecond)}
}

// sideBySide does something n times, some at once.
func sideBySide(n int, do func(i int) error) error {
	errs := make(chan error, openedAtOnce)
	var next atomic.Int64
	for range openedAtOnce {
		go func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					errs <- nil
					return
				}
				if err := do(i); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	var first error
	for range openedAtOnce {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}
