package identity

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"time"

	"weir/internal/fault"
	"weir/internal/identity/watched"
)

// Standing is the list of those who may do nothing for now, whatever their
// credentials say. A nil Standing disables nobody.
type Standing struct {
	disabled *watched.File[map[principal]bool]
}

type principal struct {
	Tenant  string `json:"tenant"`
	Subject string `json:"subject"`
}

// ReadStanding reads the list from a JSON file, again whenever it changes:
//
//	{"disabled": [{"tenant": "acme", "subject": "agent:coder"}]}
//
// A service of no tenant stands there under the tenant "*".
func ReadStanding(path string, log *slog.Logger) (*Standing, error) {
	return readStanding(path, log, time.Now)
}

func readStanding(path string, log *slog.Logger, now func() time.Time) (*Standing, error) {
	file, err := watched.Open(path, log, now, parseStanding)
	if err != nil {
		return nil, fmt.Errorf("reading standing: %w", err)
	}
	return &Standing{file}, nil
}

func parseStanding(data []byte) (map[principal]bool, error) {
	var list struct {
		Disabled []principal `json:"disabled"`
	}
	if err := strictJSON(data, &list); err != nil {
		return nil, err
	}
	disabled := make(map[principal]bool, len(list.Disabled))
	for i, p := range list.Disabled {
		// A misspelt entry would disable nobody and look as if it did.
		if err := (Caller{Tenant: p.Tenant, Subject: p.Subject}).check(); err != nil {
			return nil, fmt.Errorf("disabled[%d]: %w", i, err)
		}
		disabled[p] = true
	}
	return disabled, nil
}

// check refuses a disabled caller, and one who acts on behalf of somebody disabled: a
// principal that was stopped must not go on through those it started. The refusal
// names the one, so that a service that acts for somebody tells its own end from theirs.
func (s *Standing) check(c Caller) error {
	if s == nil {
		return nil
	}
	disabled := s.disabled.Get().Value
	if len(disabled) == 0 {
		return nil
	}
	if disabled[principal{c.Tenant, c.Subject}] {
		return fault.New(fault.CallerDisabled, "the caller is disabled").With("subject", c.Subject)
	}
	for _, subject := range c.OnBehalfOf {
		if disabled[principal{c.Tenant, subject}] {
			return fault.New(fault.CallerDisabled, "the caller acts on behalf of a disabled subject").With("subject", subject)
		}
	}
	return nil
}

// strictJSON refuses unknown fields and trailing text, where a typing mistake would
// otherwise pass for a setting.
func strictJSON(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("text after the JSON value")
	}
	return nil
}
