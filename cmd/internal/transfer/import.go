package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"

	"google.golang.org/grpc"

	"weir/cmd/internal/console"
	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/visible"
)

// Import sends the lines of a file, and shows each conversation that came in. It ends with
// the first that doesn't; what it sent of that one may be there. The same lines once
// more go on behind what is there.
func Import(ctx context.Context, t *console.Terminal, mesh conversationv1.RetentionServiceClient, file string, lines iter.Seq2[Line, error]) error {
	var current *importing
	defer func() { current.abandon() }()
	for line, err := range lines {
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if line.Record.GetConversation() != nil {
			if err := current.finish(t); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			if current, err = begin(ctx, mesh, line.Record.GetConversation()); err != nil {
				return fmt.Errorf("%s: %s: %w", file, line.Place, console.Explain(err))
			}
		}
		if current == nil {
			return fmt.Errorf("%s: %s: is a message, and no conversation comes before it", file, line.Place)
		}
		if err := current.send(line); err != nil {
			if ctx.Err() != nil {
				// What the call says once it was told to end is of no use.
				err = console.Explain(fault.From(ctx.Err()))
			}
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	if current == nil {
		return fmt.Errorf("%s: holds no conversation", file)
	}
	if err := current.finish(t); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// maxForeignBytes bounds a file that is read as a whole.
const maxForeignBytes = 64 << 20

// ImportForeign imports a file of one of the Formats. Nothing is sent of a file in which
// anything can't be. It shows what was left out.
func ImportForeign(ctx context.Context, t *console.Terminal, mesh conversationv1.RetentionServiceClient, path, format string, o Options) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("import: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxForeignBytes+1))
	if err != nil {
		return fmt.Errorf("import: %w", err)
	}
	if len(text) > maxForeignBytes {
		return fmt.Errorf("%s: is larger than %d bytes; its conversations can be in several files", path, maxForeignBytes)
	}
	foreign, err := Formats[format](text, o)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := Import(ctx, t, mesh, path, foreign.Lines()); err != nil {
		return err
	}
	for _, note := range foreign.Notes() {
		t.Printf("%s: %s\n", path, visible.Text(note))
	}
	return nil
}

// importing is one conversation on its way. A nil one is none.
type importing struct {
	stream grpc.ClientStreamingClient[conversationv1.ImportConversationRequest, conversationv1.ImportConversationResponse]
	cancel context.CancelFunc
	id     string
	head   int64 // that the conversation says it has
	at     int64 // position of the last message
	places []string
}

func begin(ctx context.Context, mesh conversationv1.RetentionServiceClient, c *conversationv1.Conversation) (*importing, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := mesh.ImportConversation(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	return &importing{stream: stream, cancel: cancel, id: c.GetConversationId(), head: c.GetHead(), at: c.GetParent().GetPosition()}, nil
}

// abandon ends the call, if it is still there.
func (i *importing) abandon() {
	if i != nil {
		i.cancel()
	}
}

func (i *importing) send(line Line) error {
	i.places = append(i.places, line.Place)
	if m := line.Record.GetMessage(); m != nil {
		i.at = m.GetPosition()
	}
	err := i.stream.Send(&conversationv1.ImportConversationRequest{Line: line.Text})
	if errors.Is(err, io.EOF) {
		// The mesh ended it; why comes with its answer.
		if _, err = i.stream.CloseAndRecv(); err == nil {
			err = errors.New("the mesh ended the import before its end")
		}
	}
	if err != nil {
		return i.explain(err)
	}
	return nil
}

// finish shows what came in. A conversation says how long it is, so a file that was cut off
// is not taken for a whole one.
func (i *importing) finish(t *console.Terminal) error {
	if i == nil {
		return nil
	}
	if i.at < i.head {
		return fmt.Errorf("%s: conversation %s has messages up to position %d, and the file only up to %d",
			i.places[len(i.places)-1], visible.Text(i.id), i.head, i.at)
	}
	answer, err := i.stream.CloseAndRecv()
	if err != nil {
		return i.explain(err)
	}
	i.cancel()
	messages := int64(len(i.places) - 1)
	t.Printf("%s: %d messages imported, %d were there\n",
		visible.Text(answer.GetConversation().GetConversationId()), answer.GetImported(), messages-answer.GetImported())
	return nil
}

// explain says which line is at fault. Lines are sent ahead of the answer, so that is known
// only where the mesh names it: by its number in the import, as metadata.
func (i *importing) explain(err error) error {
	place := i.places[0]
	if last := i.places[len(i.places)-1]; last != place {
		place += " to " + last
	}
	if number, malformed := strconv.Atoi(fault.From(err).Metadata("line")); malformed == nil && number >= 1 && number <= len(i.places) {
		place = i.places[number-1]
	}
	return fmt.Errorf("%s: %w", place, console.Explain(err))
}
