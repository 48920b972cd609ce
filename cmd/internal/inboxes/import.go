package inboxes

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"weir/cmd/internal/console"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
	"weir/internal/strictjson"
)

// maxFile is what the inbox takes.
const maxFile = 2 << 20

// importLimit is how long an import may take. Each of a thousand items is an event of its
// own, in a journal that waits for its disk.
const importLimit = 2 * time.Minute

// Import hands a state file to the inbox, and never writes to it: where it is refused it
// is as it was, for whoever can still read it.
func Import(ctx context.Context, t *console.Terminal, client inboxv1.InboxServiceClient, path string) error {
	text, err := readFile(path)
	if err != nil {
		return fmt.Errorf("import: %w", err)
	}
	// The inbox checks everything; here it is only asked whose file that is.
	canonical, err := strictjson.Canonical(text)
	if err != nil {
		// In words and not wrapped, since no service has said so.
		return fmt.Errorf("import: %s: %s", path, fault.From(err).Message())
	}
	var file struct {
		Goal string `json:"goal"`
	}
	if err := json.Unmarshal(canonical, &file); err != nil || file.Goal == "" {
		return fmt.Errorf("import: %s: goal: must be there, and a string", path)
	}
	ctx, cancel := context.WithTimeout(ctx, importLimit)
	defer cancel()
	got, err := client.ImportGoal(ctx, &inboxv1.ImportGoalRequest{Goal: file.Goal, StateJson: text})
	if err != nil {
		return err
	}
	t.Printf("%s: %s and %d items imported\n", safe(file.Goal), messages(int(got.GetMessages())), got.GetItems())
	return nil
}

func readFile(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s: a state file is at most %d bytes", path, maxFile)
	}
	return string(text), err
}
