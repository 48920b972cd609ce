package registry

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"weir/internal/schema"
	"weir/internal/strictjson"
)

// Operation is one thing that can be run, as its definition says.
type Operation struct {
	Name        string
	Description string
	Kind        kind
	Effect      effect
	Visibility  visibility
	Resource    *resource
	Input       *schema.Schema
	Output      *schema.Schema
	// Digest is the SHA-256 over the canonical definition. The binding is not
	// part of it: moving a target does not change what was approved.
	Digest  string
	Binding binding
}

type (
	kind       string
	effect     string
	visibility string
)

const (
	kindQuery    kind = "QUERY"
	kindMutation kind = "MUTATION"

	effectRead  effect = "READ"
	effectWrite effect = "WRITE"
	effectAdmin effect = "ADMIN"

	visibilityExternal visibility = "EXTERNAL"
	visibilityInternal visibility = "INTERNAL"
)

// resource says what an operation acts on.
type resource struct {
	Type string `json:"type" yaml:"type"`
	// Pointer is the JSON pointer into the input where its id stands.
	Pointer string `json:"pointer" yaml:"pointer"`
}

const resourceConversation = "conversation"

// target gives the id of the conversation that an input aims the operation at,
// empty when it aims at none.
func (o *Operation) target(input any) string {
	if o.Resource == nil || o.Resource.Type != resourceConversation {
		return ""
	}
	id, _ := lookup(input, o.Resource.Pointer).(string)
	return id
}

// lookup follows a JSON pointer through objects.
func lookup(value any, pointer string) any {
	for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		object, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = object[strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")]
	}
	return value
}

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)+$`)

const maxName = 200

// check refuses what no definition may say.
func (o *Operation) check() error {
	switch {
	case len(o.Name) > maxName || !namePattern.MatchString(o.Name):
		return fmt.Errorf("name: %q is not namespace/name of [a-z0-9][a-z0-9_-]* segments, %d characters at most", o.Name, maxName)
	case strings.TrimSpace(o.Description) == "":
		return fmt.Errorf("description: must say what running it does")
	case o.Kind != kindQuery && o.Kind != kindMutation:
		return fmt.Errorf("kind: %q is not QUERY or MUTATION", o.Kind)
	case o.Effect != effectRead && o.Effect != effectWrite && o.Effect != effectAdmin:
		return fmt.Errorf("effect: %q is not READ, WRITE or ADMIN", o.Effect)
	case (o.Kind == kindQuery) != (o.Effect == effectRead):
		return fmt.Errorf("effect: %s does not go with kind %s: what is repeatable only reads", o.Effect, o.Kind)
	case o.Visibility != visibilityExternal && o.Visibility != visibilityInternal:
		return fmt.Errorf("visibility: %q is not EXTERNAL or INTERNAL", o.Visibility)
	case o.Resource != nil && (o.Resource.Type == "" || !strings.HasPrefix(o.Resource.Pointer, "/")):
		return fmt.Errorf("resource: needs a type and a JSON pointer into the input")
	}
	return nil
}

// digest names the definition.
func (o *Operation) digest() (string, error) {
	text, err := json.Marshal(struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Kind        kind            `json:"kind"`
		Effect      effect          `json:"effect"`
		Visibility  visibility      `json:"visibility"`
		Resource    *resource       `json:"resource,omitempty"`
		Input       json.RawMessage `json:"input"`
		Output      json.RawMessage `json:"output"`
	}{o.Name, o.Description, o.Kind, o.Effect, o.Visibility, o.Resource, o.Input.Text(), o.Output.Text()})
	if err != nil {
		return "", err
	}
	canonical, err := strictjson.Canonical(string(text))
	if err != nil {
		return "", err
	}
	return strictjson.Digest(canonical), nil
}

// targetOf is target for an input that is known to be valid JSON.
func (o *Operation) targetOf(input *string) string {
	if o.Resource == nil || input == nil {
		return ""
	}
	var value any
	if json.Unmarshal([]byte(*input), &value) != nil {
		return ""
	}
	return o.target(value)
}
