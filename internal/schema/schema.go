// Package schema validates JSON by JSON Schema (2020-12). A schema reaches for
// nothing but itself, and what it says of an input names places and keywords,
// never values.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	keyword "github.com/santhosh-tekuri/jsonschema/v6/kind"

	"weir/internal/fault"
	"weir/internal/strictjson"
)

// Schema is a compiled JSON Schema and its canonical text.
type Schema struct {
	text     []byte
	compiled *jsonschema.Schema
}

// refuseLoading keeps a schema from reaching for anything but itself.
type refuseLoading struct{}

func (refuseLoading) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s: a schema may only refer to itself", url)
}

// Compile reads a schema.
func Compile(text []byte) (*Schema, error) {
	canonical, err := strictjson.Canonical(string(text))
	if err != nil {
		return nil, err
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(canonical))
	if err != nil {
		return nil, err
	}
	// With a path, so that a reference without a scheme names something else than
	// the schema itself, and is refused.
	const url = "weir:///schema"
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	compiler.UseLoader(refuseLoading{})
	if err := compiler.AddResource(url, document); err != nil {
		return nil, err
	}
	compiled, err := compiler.Compile(url)
	if err != nil {
		return nil, err
	}
	return &Schema{text: canonical, compiled: compiled}, nil
}

// Text is the schema in canonical JSON.
func (s *Schema) Text() []byte { return s.text }

// Validate parses canonical JSON and checks it. What it answers names places
// and keywords, never values: an input may hold secrets. Input nil is no input
// at all, which only a schema without demands takes.
func (s *Schema) Validate(field string, canonical []byte) (any, error) {
	var value any
	if canonical != nil {
		var err error
		if value, err = jsonschema.UnmarshalJSON(bytes.NewReader(canonical)); err != nil {
			return nil, fault.New(fault.JSONInvalid, "%s is no JSON", field).Wrap(err)
		}
	}
	if canonical == nil && !s.takesAnything() {
		return nil, fault.New(fault.SchemaMismatch, "%s does not match the operation's schema", field).
			Field(field, "is missing, and the operation needs one")
	}
	err := s.compiled.Validate(value)
	if err == nil {
		return value, nil
	}
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return nil, fault.New(fault.Bug, "%s could not be checked", field).Wrap(err)
	}
	refusal := fault.New(fault.SchemaMismatch, "%s does not match the operation's schema", field)
	for _, violation := range leaves(invalid, nil) { // an error keeps the first few
		refusal = refusal.Field(field+pointer(violation.InstanceLocation), explain(violation.ErrorKind))
	}
	return nil, refusal
}

// takesAnything says that a schema makes no demands: it takes a value of every
// type. Absent is none of them, not even null.
func (s *Schema) takesAnything() bool {
	for _, v := range []any{nil, true, json.Number("0"), "", []any{}, map[string]any{}} {
		if s.compiled.Validate(v) != nil {
			return false
		}
	}
	return true
}

// leaves gives the errors that have no causes of their own, in order of place.
func leaves(e *jsonschema.ValidationError, found []*jsonschema.ValidationError) []*jsonschema.ValidationError {
	if len(e.Causes) == 0 {
		return append(found, e)
	}
	for _, cause := range e.Causes {
		found = leaves(cause, found)
	}
	slices.SortStableFunc(found, func(a, b *jsonschema.ValidationError) int {
		return slices.Compare(a.InstanceLocation, b.InstanceLocation)
	})
	return found
}

// explain says what is wrong in words of the schema, which is public, and never
// in words of the input.
func explain(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *keyword.Required:
		return "must have " + strings.Join(k.Missing, ", ")
	case *keyword.AdditionalProperties:
		return "must not have other properties than the schema's"
	case *keyword.Type:
		return "must be of type " + strings.Join(k.Want, " or ")
	case *keyword.Pattern:
		return "must match " + k.Want
	case *keyword.MinLength:
		return fmt.Sprintf("must have at least %d characters", k.Want)
	case *keyword.MaxLength:
		return fmt.Sprintf("must have at most %d characters", k.Want)
	case *keyword.MinItems:
		return fmt.Sprintf("must have at least %d items", k.Want)
	case *keyword.MaxItems:
		return fmt.Sprintf("must have at most %d items", k.Want)
	case *keyword.Minimum:
		return "must be at least " + k.Want.RatString()
	case *keyword.Maximum:
		return "must be at most " + k.Want.RatString()
	case *keyword.FalseSchema:
		return "must not be there"
	default:
		return "fails the keyword " + strings.Join(k.KeywordPath(), "/")
	}
}

// pointer writes a JSON pointer; the empty path is the whole value.
func pointer(tokens []string) string {
	var b strings.Builder
	for _, token := range tokens {
		b.WriteByte('/')
		b.WriteString(strings.ReplaceAll(strings.ReplaceAll(token, "~", "~0"), "/", "~1"))
	}
	return b.String()
}
