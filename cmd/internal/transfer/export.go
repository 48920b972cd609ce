package transfer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"weir/cmd/internal/console"
	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/visible"
)

// maxAncestors is how deep forks of forks go.
const maxAncestors = 64

// Export writes conversations as lines, one after the other and each once: to the
// terminal, or into a new file. With ancestors, those that a fork shares its past with
// come before it, so that all of it can be imported again.
func Export(ctx context.Context, t *console.Terminal, mesh conversationv1.RetentionServiceClient, ids []string, file string, ancestors bool) error {
	all, err := order(ctx, mesh, ids, ancestors)
	if err != nil {
		return err
	}
	if file == "" {
		// What others wrote can't command the terminal, and means the same in JSON.
		_, err := write(ctx, t.Out, mesh, all, visible.Text)
		return err
	}
	var messages int
	err = create(file, func(w io.Writer) (err error) {
		messages, err = write(ctx, w, mesh, all, func(line string) string { return line })
		return err
	})
	if err != nil {
		return err
	}
	t.Printf("%d conversations with %d messages, kept in %s\n", len(all), messages, file)
	return nil
}

// order is each id once, with its ancestors before it if they are wanted.
func order(ctx context.Context, mesh conversationv1.RetentionServiceClient, ids []string, ancestors bool) ([]string, error) {
	var all []string
	for _, id := range ids {
		var line []string
		for next := id; next != "" && !slices.Contains(all, next); {
			line = append(line, next)
			if !ancestors {
				break
			}
			if len(line) > maxAncestors+1 {
				return nil, fmt.Errorf("%s: has more than %d ancestors", visible.Text(id), maxAncestors)
			}
			parent, err := parent(ctx, mesh, next)
			if err != nil {
				return nil, of(id, next, err)
			}
			next = parent
		}
		slices.Reverse(line)
		all = append(all, line...)
	}
	return all, nil
}

// of says which conversation is at fault, and of which one it is an ancestor.
func of(id, ancestor string, err error) error {
	if ancestor == id {
		return fmt.Errorf("%s: %w", visible.Text(id), console.Explain(err))
	}
	return fmt.Errorf("%s, of which %s is a fork: %w", visible.Text(ancestor), visible.Text(id), console.Explain(err))
}

// parent of a conversation stands in the first line of its export; "" for no fork.
func parent(ctx context.Context, mesh conversationv1.RetentionServiceClient, id string) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := mesh.ExportConversation(ctx, &conversationv1.ExportConversationRequest{ConversationId: id})
	if err != nil {
		return "", err
	}
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return "", errors.New("its export is empty")
	}
	if err != nil {
		return "", err
	}
	record, err := parse(first.GetLine())
	if err != nil {
		return "", fmt.Errorf("the first line of its export: %w", err)
	}
	return record.GetConversation().GetParent().GetConversationId(), nil
}

// write gives the number of messages that it wrote.
func write(ctx context.Context, w io.Writer, mesh conversationv1.RetentionServiceClient, ids []string, shown func(string) string) (messages int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	buffered := bufio.NewWriter(w)
	for _, id := range ids {
		stream, err := mesh.ExportConversation(ctx, &conversationv1.ExportConversationRequest{ConversationId: id})
		if err != nil {
			return 0, of(id, id, err)
		}
		for lines := 0; ; lines++ {
			answer, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				messages += max(lines-1, 0)
				break
			}
			if err != nil {
				// What came before it was there to be read.
				return 0, errors.Join(of(id, id, err), buffered.Flush())
			}
			if _, err := buffered.WriteString(shown(answer.GetLine()) + "\n"); err != nil {
				return 0, err
			}
		}
	}
	return messages, buffered.Flush()
}

// create fills a new file, and leaves none where that fails. It never overwrites: what is
// in an old export may be nowhere else.
func create(path string, fill func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("--output: %s is there already, and what is in it may be nowhere else", path)
	}
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(path)
	}
	return err
}
