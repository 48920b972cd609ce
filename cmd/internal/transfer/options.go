package transfer

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"weir/internal/identity"
)

// Options say what the files of others don't.
type Options struct {
	// ID of the conversation, where there is one only; made of its content if empty.
	ID    string
	Title string
	// As are the subjects of roles: user, assistant, system and tool. What is given here
	// holds for every message of the role, whatever name it carries.
	As map[string]string
}

// role is who said something, in the words of chat models.
type role string

const (
	user      role = "user"
	assistant role = "assistant"
	system    role = "system"
	tool      role = "tool"
)

// authors are the subjects of roles that Options.As doesn't name.
var authors = map[role]string{
	user: "human:user", assistant: "agent:assistant", system: "service:system", tool: "service:tool",
}

const maxTitle = 200 // characters

func (o Options) check() error {
	if o.ID != "" && !idPattern.MatchString(o.ID) {
		return errors.New("--id: want up to 64 letters, digits, '.', '_' and '-', the first a letter or digit")
	}
	if utf8.RuneCountInString(o.Title) > maxTitle {
		return fmt.Errorf("--title: has more than %d characters", maxTitle)
	}
	for name, subject := range o.As {
		if authors[role(name)] == "" {
			return fmt.Errorf("--as %s=%s: want one of user, assistant, system and tool", name, subject)
		}
		if _, _, err := identity.ParseSubject(subject); err != nil {
			return fmt.Errorf("--as %s=%s: %w", name, subject, err)
		}
	}
	return nil
}

// author is who said a message of a role. Named says whether it is after the name that the
// message carries.
func (o Options) author(r role, name string) (subject string, named bool) {
	if subject := o.As[string(r)]; subject != "" {
		return subject, false
	}
	kind := map[role]identity.Kind{user: identity.Human, assistant: identity.Agent}[r]
	if subject := string(kind) + ":" + name; kind != "" && name != "" {
		if _, _, err := identity.ParseSubject(subject); err == nil {
			return subject, true
		}
	}
	return authors[r], false
}
