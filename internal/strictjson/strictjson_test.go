package strictjson

import (
	"bytes"
	"encoding/json"
	"math/big"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"weir/internal/fault"
)

func TestCanonicalForm(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"null":              {" null\n", `null`},
		"empty object":      {"{ }", `{}`},
		"keys are sorted":   {`{"b":1,"a":{"d":[ ],"c":true}}`, `{"a":{"c":true,"d":[]},"b":1}`},
		"as UTF-16":         {`{"\uFB33":1,"😂":2,"\u20ac":3,"\r":4,"1":5,"\u0080":6,"\u00f6":7}`, `{"\r":4,"1":5,"` + "\u0080" + `":6,"ö":7,"€":3,"😂":2,"` + "\uFB33" + `":1}`},
		"strings":           {`"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/\u0000"`, `"€$\u000f\nA'B\"\\\\\"/\u0000"`},
		"surrogate pair":    {`"\uD83D\uDE00"`, `"😀"`},
		"not normalized":    {`["\u00e9","e\u0301"]`, "[\"\u00e9\",\"e\u0301\"]"},
		"numbers":           {`[1E30,4.50,2e-3,0.000000000000000000000000001,333333333.3333333]`, `[1e+30,4.5,0.002,1e-27,333333333.3333333]`},
		"a tenth":           {"0.1", "0.1"},
		"whole":             {"1.0", "1"},
		"exponent":          {"1e2", "100"},
		"negative zero":     {"-0", "0"},
		"zero as it may be": {"-0.000e999999999999999", "0"},
		"largest integers":  {"[9007199254740991,9007199254740992,-9007199254740992.000]", "[9007199254740991,9007199254740992,-9007199254740992]"},
		"largest double":    {"1.7976931348623157e308", "1.7976931348623157e+308"},
		"smallest double":   {"5e-324", "5e-324"},
		"zeros written out": {"1" + strings.Repeat("0", 300) + "e-300", "1"},
		"64 deep":           {strings.Repeat("[", 64) + strings.Repeat("]", 64), strings.Repeat("[", 64) + strings.Repeat("]", 64)},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Canonical(c.text)
			if err != nil || string(got) != c.want {
				t.Errorf("%s gives %s, %v; want %s", c.text, got, err, c.want)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	const number = "the number is not one that a double keeps exactly"
	for name, c := range map[string]struct{ text, want string }{
		"empty":                      {"", "there is no value (line 1, column 1)"},
		"blank":                      {" \n ", "there is no value (line 2, column 2)"},
		"byte order mark":            {"\uFEFF{}", "a byte order mark is not JSON (line 1, column 1)"},
		"duplicate key":              {`{"a":1,"b":[{"x":1,"x":2}]}`, `a key stands twice in one object (line 1, column 20, at "/b/0/x")`},
		"duplicate, other spelling":  {`{"a":1,"\u0061":2}`, `a key stands twice in one object (line 1, column 8, at "/a")`},
		"invalid UTF-8":              {"{\"ö\":\"\xff\"}", "the text is not UTF-8 (line 1, column 7)"},
		"surrogate as bytes":         {"\"\xed\xa0\x80\"", "the text is not UTF-8 (line 1, column 2)"},
		"overlong":                   {"\"\xc0\x80\"", "the text is not UTF-8 (line 1, column 2)"},
		"first half alone":           {"{\"a\":\n \"ö\\ud800\"}", `half of a surrogate pair is not a character (line 2, column 4, at "/a")`},
		"second half alone":          {`"\udc00"`, "half of a surrogate pair is not a character (line 1, column 2)"},
		"halves swapped":             {`"\uDE00\uD83D"`, "half of a surrogate pair is not a character (line 1, column 2)"},
		"half in a key":              {`{"\uD8FF":1}`, "half of a surrogate pair is not a character (line 1, column 3)"},
		"trailing text":              {"{\"a\":1}\n x", "text follows the value (line 2, column 2)"},
		"trailing value":             {"1 2", "text follows the value (line 1, column 3)"},
		"trailing NUL":               {"1\x00", "text follows the value (line 1, column 2)"},
		"trailing bracket":           {"{}}", "text follows the value (line 1, column 3)"},
		"65 deep":                    {`{"a":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + "}", "arrays and objects are nested deeper than 64 (line 1, column 69)"},
		"a million deep":             {strings.Repeat("[", 1e6), "arrays and objects are nested deeper than 64 (line 1, column 65"},
		"2^53 + 1":                   {`[0,9007199254740993]`, number + ` (line 1, column 4, at "/1")`},
		"too large":                  {"1e400", number + " (line 1, column 1)"},
		"too small":                  {"1e-400", number + " (line 1, column 1)"},
		"digits of the double":       {"0.1000000000000000055511151231257827", number + " (line 1, column 1)"},
		"one digit more":             {"0.10000000000000001", number + " (line 1, column 1)"},
		"hostile exponent":           {"1e999999999", number + " (line 1, column 1)"},
		"hostile negative exponent":  {"1e-999999999", number + " (line 1, column 1)"},
		"exponent beyond any number": {"1e99999999999999999999999", number + " (line 1, column 1)"},
		"NaN":                        {"NaN", "this is not JSON (line 1, column 1)"},
		"leading zero":               {"01", "text follows the value (line 1, column 2)"},
		"cut off":                    {`{"a":"b`, `the text ends inside of the value (line 1, column 8, at "/a")`},
		"trailing comma":             {`{"a":1,}`, "this is not JSON (line 1, column 7)"},
		"comment":                    {"{} // x", "text follows the value (line 1, column 4)"},
		"key without quotes":         {"{1:2}", "an object key is not a string (line 1, column 2)"},
		"single quotes":              {"'x'", "this is not JSON (line 1, column 1)"},
		"control character":          {"\"a\tb\"", "a control character is not escaped (line 1, column 3)"},
		"unknown escape":             {`"\q"`, "there is no such escape (line 1, column 2)"},
		"escape without its digits":  {`"\uzzzz"`, "there is no such escape (line 1, column 2)"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Canonical(c.text)
			if !fault.Is(err, fault.JSONInvalid) || got != nil {
				t.Fatalf("gives %q, %v; want JSON_INVALID", got, err)
			}
			if m := fault.From(err).Message(); !strings.HasPrefix(m, c.want) {
				t.Errorf("says %q, want %q", m, c.want)
			}
		})
	}
}

// A value may be a password, wherever in it the text goes wrong.
func TestMessagesRepeatNoValue(t *testing.T) {
	const secret = "hunter2"
	whole := `{"key":"hunter2","n":[{"hunter":"hunter2"}],"m":1}`
	broken := []string{`"hunter2`, `{"key":hunter2}`, `{"key":"hunter2" "hunter2"}`, `["hunter2\qhunter2"]`, `{"a":1} hunter2`, "[\"hunter2\x01hunter2\"]", `["hunter2\ud800hunter2"]`, `{"key":"hunter2","key":"hunter2"}`}
	for i := range whole {
		broken = append(broken, whole[:i], whole[:i]+"\xff"+whole[i:], whole[:i]+"~"+whole[i:])
	}
	for _, text := range broken {
		if _, err := Canonical(text); err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Keys may be of any length and hold anything; the message stays readable.
func TestLongAndHostileKeysAreCutAndEscaped(t *testing.T) {
	key := strings.Repeat("ö", 5000) + "\u202eend"
	_, err := Canonical(`{"` + key + `":1e999}`)
	m := fault.From(err).Message()
	if len(m) > 250 || !utf8.ValidString(m) || !strings.HasSuffix(m, `ö\u202eend")`) {
		t.Errorf("%d bytes: %s", len(m), m)
	}
}

// No input, null and {} are three different things.
func TestDigest(t *testing.T) {
	for canonical, want := range map[string]string{
		"":     "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		"null": "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b",
		"{}":   "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
	} {
		if got := Digest([]byte(canonical)); got != want {
			t.Errorf("digest of %q is %s, want %s", canonical, got, want)
		}
	}
	if Digest(nil) != Digest([]byte{}) {
		t.Error("nil and no bytes differ")
	}
}

// The number test against exact arithmetic.
func TestNumbersAreKeptExactlyOrRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(
			rapid.StringMatching(`-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?`),
			rapid.Custom(func(t *rapid.T) string { // near and beyond the integers that doubles hold
				n := rapid.Int64Range(1<<53-4, 1<<60).Draw(t, "n")
				return strconv.FormatInt(n, 10)
			}),
			rapid.Custom(func(t *rapid.T) string { return spell(t, rapid.Float64().Draw(t, "f")) }),
		).Draw(t, "number")
		source, ok := new(big.Rat).SetString(text)
		if !ok {
			t.Skip("not a number that big.Rat reads")
		}
		got, err := Canonical(text)
		double, _ := strconv.ParseFloat(text, 64)
		shortest, ok := new(big.Rat).SetString(strconv.FormatFloat(double, 'g', -1, 64))
		if keeps := ok && shortest.Cmp(source) == 0; keeps != (err == nil) {
			t.Fatalf("%s: %s, %v; want it kept: %v", text, got, err, keeps)
		}
		if err == nil {
			if back, _ := new(big.Rat).SetString(string(got)); back.Cmp(source) != 0 {
				t.Fatalf("%s became %s", text, got)
			}
		}
	})
}

func TestEqualValuesAreEqualBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := value(4).Draw(t, "a")
		b := a
		if rapid.Bool().Draw(t, "another value") {
			b = value(4).Draw(t, "b")
		}
		texts := [2]string{render(t, a), render(t, b)}
		var canonical [2][]byte
		var decoded [2]any
		for i, text := range texts {
			var err error
			if canonical[i], err = Canonical(text); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if again, err := Canonical(string(canonical[i])); err != nil || !bytes.Equal(again, canonical[i]) {
				t.Fatalf("%s became %s, %v", canonical[i], again, err)
			}
			var before any
			if err := json.Unmarshal([]byte(text), &before); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if err := json.Unmarshal(canonical[i], &decoded[i]); err != nil || !reflect.DeepEqual(before, decoded[i]) {
				t.Fatalf("%s became %s, %v", text, canonical[i], err)
			}
		}
		if reflect.DeepEqual(decoded[0], decoded[1]) != bytes.Equal(canonical[0], canonical[1]) {
			t.Fatalf("%s and %s became %s and %s", texts[0], texts[1], canonical[0], canonical[1])
		}
	})
}

// value makes what json.Unmarshal would give.
func value(depth int) *rapid.Generator[any] {
	leaves := []*rapid.Generator[any]{
		rapid.SampledFrom([]any{nil, true, false, 0.0, 1.0, -1.5, 1e21, 0.1, "", "a"}),
		rapid.Map(rapid.Float64(), func(f float64) any { return f }),
		rapid.Map(rapid.String(), func(s string) any { return s }),
	}
	if depth == 0 {
		return rapid.OneOf(leaves...)
	}
	return rapid.OneOf(append(leaves,
		rapid.Map(rapid.SliceOfN(rapid.Deferred(func() *rapid.Generator[any] { return value(depth - 1) }), 0, 4), func(s []any) any { return s }),
		rapid.Map(rapid.MapOfN(rapid.String(), rapid.Deferred(func() *rapid.Generator[any] { return value(depth - 1) }), 0, 4), func(m map[string]any) any { return m }),
	)...)
}

// render writes a value as JSON in one of the many ways there are.
func render(t *rapid.T, v any) string {
	space := func() string { return rapid.SampledFrom([]string{"", "", " ", "\n\t", "\r\n"}).Draw(t, "space") }
	var text string
	switch v := v.(type) {
	case []any:
		parts := make([]string, len(v))
		for i, element := range v {
			parts[i] = render(t, element)
		}
		text = "[" + space() + strings.Join(parts, ",") + "]"
	case map[string]any:
		var parts []string
		for key, element := range v {
			parts = append(parts, space()+quote(t, key)+space()+":"+render(t, element))
		}
		text = "{" + strings.Join(rapid.Permutation(parts).Draw(t, "order"), ",") + "}"
	case string:
		text = quote(t, v)
	case float64:
		text = spell(t, v)
	default:
		plain, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		text = string(plain)
	}
	return space() + text + space()
}

// spell writes a number with more zeros or another exponent than it needs.
func spell(t *rapid.T, f float64) string {
	switch rapid.IntRange(0, 3).Draw(t, "spelling") {
	case 0:
		return strconv.FormatFloat(f, 'f', -1, 64)
	case 1:
		mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(f, 'e', -1, 64), "e")
		if !strings.Contains(mantissa, ".") {
			mantissa += "."
		}
		return mantissa + "000E" + exponent
	default:
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
}

// quote writes a string with some of its characters as escapes.
func quote(t *rapid.T, s string) string {
	ascii := rapid.Bool().Draw(t, "escape all")
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r > 0xFFFF && ascii:
			r -= 0x10000
			b.WriteString(`\u` + strconv.FormatInt(int64(0xD800+r>>10), 16) + `\u` + strconv.FormatInt(int64(0xDC00+r&0x3FF), 16))
		case r < ' ', r == '"', r == '\\', r <= 0xFFFF && ascii:
			hex := strconv.FormatInt(int64(r), 16)
			b.WriteString(`\u` + strings.Repeat("0", 4-len(hex)) + hex)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// Whatever the text: it is refused as JSON_INVALID, or encoding/json reads the
// same from it and from its canonical form.
func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{
		"", "null", `{"a":[1,-0,1e2],"b":"\ud83d\ude00"}`, `{"a":1,"a":2}`, `"\ud800"`, "\"\xff\"", "[[[", "1e999999999",
		"9007199254740993", "0.1", "{} x", "\uFEFF1", `{"\u0061":{},"\u0062":[]}`, `"\q"`, "01", "tru", "1.7976931348623157e308",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Canonical(text)
		if err != nil {
			if !fault.Is(err, fault.JSONInvalid) {
				t.Fatal(err)
			}
			return
		}
		again, err := Canonical(string(got))
		if err != nil || !bytes.Equal(got, again) {
			t.Fatalf("%s became %s, %v", got, again, err)
		}
		var before, after any
		if err := json.Unmarshal([]byte(text), &before); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(got, &after); err != nil || !reflect.DeepEqual(before, after) {
			t.Fatalf("%v became %v, %v", before, after, err)
		}
	})
}
