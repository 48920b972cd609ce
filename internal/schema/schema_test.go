package schema_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/status"

	"weir/internal/fault"
	"weir/internal/schema"
)

func compiled(t testing.TB, text string) *schema.Schema {
	t.Helper()
	s, err := schema.Compile([]byte(text))
	if err != nil {
		t.Fatalf("compile %s: %v", text, err)
	}
	return s
}

// refused says that an input is refused, and gives what the client is told of
// each place.
func refused(t testing.TB, s *schema.Schema, input string) map[string]string {
	t.Helper()
	_, err := s.Validate("input_json", []byte(input))
	if !fault.Is(err, fault.SchemaMismatch) {
		t.Fatalf("%s by %s: %v, want SCHEMA_MISMATCH", input, s.Text(), err)
	}
	places := map[string]string{}
	for _, v := range fault.From(err).Violations() {
		places[v.Field] = v.Description
	}
	return places
}

func TestASchemaReachesForNothingButItself(t *testing.T) {
	// Files that are there, and say yes to everything: what fails is the reaching.
	folder := t.TempDir()
	file := filepath.Join(folder, "open.json")
	if err := os.WriteFile(file, []byte(`true`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(folder)
	for _, text := range []string{
		`{"$ref":"file://` + file + `"}`,
		`{"$ref":"open.json"}`,
		`{"$ref":"` + file + `"}`,
		`{"$ref":"//example.com/schema"}`,
		`{"$id":"open.json","$ref":"other.json"}`,
		`{"$id":"file://` + folder + `/root.json","$ref":"open.json"}`,
		`{"$ref":"http://127.0.0.1:1/schema"}`,
		`{"$ref":"https://example.com/schema#/$defs/x"}`,
		`{"$dynamicRef":"https://example.com/schema#x"}`,
		`{"$schema":"https://example.com/meta"}`,
		`{"properties":{"a":{"items":{"$ref":"https://example.com/schema"}}}}`,
	} {
		if _, err := schema.Compile([]byte(text)); err == nil || !strings.Contains(err.Error(), "may only refer to itself") {
			t.Errorf("%s: %v", text, err)
		}
	}
	within := compiled(t, `{"$ref":"#/$defs/a","$defs":{"a":{"$anchor":"here","type":"object","properties":{"next":{"$ref":"#here"}},"additionalProperties":false}}}`)
	if _, err := within.Validate("input_json", []byte(`{"next":{"next":{}}}`)); err != nil {
		t.Errorf("a reference within: %v", err)
	}
	if places := refused(t, within, `{"next":{"other":1}}`); places["input_json/next"] == "" {
		t.Errorf("a reference within: %v", places)
	}
}

func TestWhatIsNoSchemaIsRefused(t *testing.T) {
	for _, text := range []string{
		``, `{`, `null`, `"string"`, `{"type":"strnig"}`, `{"minLength":-1}`, `{"pattern":"("}`, `{"$ref":"#/$defs/none"}`,
		`{"type":"string","type":"number"}`, `{"maximum":9007199254740993}`, `true false`,
	} {
		if _, err := schema.Compile([]byte(text)); err == nil {
			t.Errorf("%s was compiled", text)
		}
	}
}

// The same schema is the same text, however it was written: digests are over it.
func TestTheTextIsCanonical(t *testing.T) {
	s := compiled(t, "{ \"type\": \"object\",\n \"additionalProperties\" : false }")
	if got := string(s.Text()); got != `{"additionalProperties":false,"type":"object"}` {
		t.Fatalf("got %s", got)
	}
	if again := compiled(t, string(s.Text())); !bytes.Equal(again.Text(), s.Text()) {
		t.Fatalf("again it is %s", again.Text())
	}
}

func TestAValidInputIsGivenAsItWasParsed(t *testing.T) {
	s := compiled(t, `{"type":"object","properties":{"n":{"type":"integer","minimum":1},"at":{"format":"date-time"}},"required":["n"]}`)
	value, err := s.Validate("input_json", []byte(`{"at":"2026-01-02T12:00:00Z","n":12}`))
	if err != nil {
		t.Fatal(err)
	}
	object, ok := value.(map[string]any)
	if !ok || object["n"] != json.Number("12") {
		t.Fatalf("got %#v", value)
	}
	_, err = s.Validate("input_json", []byte(`{"n":`))
	if !fault.Is(err, fault.JSONInvalid) {
		t.Fatalf("no JSON: %v", err)
	}
}

func TestARefusalNamesThePlaceAndTheDemand(t *testing.T) {
	for _, tc := range []struct{ schema, input, place, says string }{
		{`{"required":["a","b"]}`, `{"c":1}`, "", "must have a, b"},
		{`{"properties":{"a":{"required":["b"]}}}`, `{"a":{}}`, "/a", "must have b"},
		{`{"additionalProperties":false}`, `{"x":1}`, "", "must not have other properties than the schema's"},
		{`{"items":{"type":["string","null"]}}`, `[null,"x",3]`, "/2", "must be of type null or string"},
		{`{"items":{"pattern":"^a+$"}}`, `["aa","b"]`, "/1", "must match ^a+$"},
		{`{"minLength":2}`, `"x"`, "", "must have at least 2 characters"},
		{`{"maxLength":2}`, `"xyz"`, "", "must have at most 2 characters"},
		{`{"minItems":2}`, `[1]`, "", "must have at least 2 items"},
		{`{"maxItems":2}`, `[1,2,3]`, "", "must have at most 2 items"},
		{`{"minimum":2}`, `1`, "", "must be at least 2"},
		{`{"maximum":2.5}`, `3`, "", "must be at most 5/2"},
		{`{"enum":["a","b"]}`, `"c"`, "", "fails the keyword enum"},
		{`{"const":1}`, `2`, "", "fails the keyword const"},
		{`{"uniqueItems":true}`, `[1,1]`, "", "fails the keyword uniqueItems"},
		{`{"format":"date-time"}`, `"yesterday"`, "", "fails the keyword format"},
		{`{"properties":{"a":false}}`, `{"a":1}`, "/a", "must not be there"},
		{`{"properties":{"a/b~c":{"type":"string"}}}`, `{"a/b~c":1}`, "/a~1b~0c", "must be of type string"},
	} {
		places := refused(t, compiled(t, tc.schema), tc.input)
		if got, ok := places["input_json"+tc.place]; !ok || got != tc.says {
			t.Errorf("%s by %s: told %q, want %q at %q", tc.input, tc.schema, places, tc.says, tc.place)
		}
	}
}

// An input may hold secrets, and a refusal goes to logs and to people.
func TestARefusalHoldsNoValueOfTheInput(t *testing.T) {
	const secret = "hunter2"
	for _, text := range []string{
		`{"type":"integer"}`, `{"maxLength":3}`, `{"minLength":30}`, `{"pattern":"^[A-Z]$"}`, `{"enum":["a"]}`, `{"const":"a"}`,
		`{"format":"ipv4"}`, `{"not":{}}`, `{"oneOf":[{"type":"string"},{"minLength":1}]}`, `{"anyOf":[{"const":1},{"enum":[2]}]}`,
		`{"if":{"type":"string"},"then":{"const":1}}`, `false`,
	} {
		s := compiled(t, `{"properties":{"password":`+text+`}}`)
		_, err := s.Validate("input_json", []byte(`{"password":"`+secret+`"}`))
		if !fault.Is(err, fault.SchemaMismatch) {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if told := fmt.Sprint(status.Convert(err).Proto(), err); strings.Contains(told, secret) {
			t.Errorf("%s: the refusal says %s", text, told)
		}
	}
	for _, text := range []string{
		`{"additionalProperties":false}`, `{"maxProperties":0}`, `{"not":{"minProperties":1}}`,
	} {
		_, err := compiled(t, text).Validate("input_json", []byte(`{"`+secret+`x":"`+secret+`"}`))
		if told := fmt.Sprint(status.Convert(err).Proto(), err); !fault.Is(err, fault.SchemaMismatch) || strings.Contains(told, secret) {
			t.Errorf("%s: the refusal says %s", text, told)
		}
	}
}

func TestOfManyFaultsSomeAreTold(t *testing.T) {
	s := compiled(t, `{"items":{"type":"string"}}`)
	places := refused(t, s, "["+strings.Repeat("1,", 99)+"1]")
	if len(places) == 0 || len(places) > 10 || places["input_json/0"] == "" {
		t.Fatalf("told %v", places)
	}
}

// No input, null and {} are three different things.
func TestWhetherAnInputMayBeAbsent(t *testing.T) {
	for text, taken := range map[string]bool{
		`true`: true, `{}`: true, `{"description":"anything"}`: true, `{"type":"object"}`: false, `false`: false,
		`{"type":"null"}`: false, `{"type":["object","null"]}`: false, `{"enum":[null]}`: false, `{"not":{"type":"null"}}`: false,
		`{"required":["a"]}`: false, `{"minimum":1}`: false, `{"minLength":1}`: false, `{"minItems":1}`: false, `{"const":{}}`: false,
	} {
		value, err := compiled(t, text).Validate("input_json", nil)
		if (err == nil) != taken || value != nil {
			t.Errorf("%s takes no input: %v, %v", text, value, err)
		}
		if err == nil {
			continue
		}
		violations := fault.From(err).Violations()
		if !fault.Is(err, fault.SchemaMismatch) || len(violations) != 1 || violations[0].Field != "input_json" ||
			violations[0].Description != "is missing, and the operation needs one" {
			t.Errorf("%s: told %v", text, violations)
		}
	}
	object := compiled(t, `{"type":"object"}`)
	if _, err := object.Validate("input_json", []byte(`{}`)); err != nil {
		t.Errorf("{}: %v", err)
	}
	if places := refused(t, object, `null`); places["input_json"] != "must be of type object" {
		t.Errorf("null: told %v", places)
	}
}
