package journal_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/journal"
	"weir/internal/meshtest"
)

// hostile are ids that would like to be something else.
var hostile = []string{
	"*", ">", "a.b", "a-b", "a_b", "a b", " ", ".", "..", "a.", ".a", "a..b", "%2E", "a%2Eb", "%", "%2", "%25",
	"a.*", "a.>", "x.y.z", "/", "../x", "{x}", "{", "}", "}{", "\x00", "a\x00", "\r\n", "PUB x 0\r\n", "\t",
	"é", "e\u0301", "\u202e", "\ufeff", "😀", "\xff", "\xed\xa0\x80", "X", "x", "İ", "ı", "ſ", "K", "$JS.API", "_INBOX.x",
}

func TestHostileIDsHoldTheirOwnEvents(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	versions := make(map[journal.Key]uint64)
	keys := make([]journal.Key, 0, 3*len(hostile))
	for _, id := range hostile {
		keys = append(keys, key(id),
			journal.Key{Tenant: id, Kind: "thing", ID: "x"}, journal.Key{Tenant: "acme", Kind: id, ID: "x"})
	}
	seen := make(map[string]bool)
	var distinct []journal.Key
	for _, k := range keys {
		if !seen[k.Subject(service)] {
			distinct = append(distinct, k)
		}
		seen[k.Subject(service)] = true
	}
	if want := 3 * len(hostile); len(distinct) != want {
		t.Fatalf("%d keys have %d subjects", want, len(distinct))
	}
	for _, k := range distinct {
		versions[k] = appended(t, j, eventOf(k, "first of "+k.Escaped()), 0)
	}
	for _, k := range distinct {
		versions[k] = appended(t, j, eventOf(k, "second of "+k.Escaped()), versions[k])
	}
	for _, k := range distinct {
		var got []journal.Event
		version, err := j.Replay(t.Context(), k, 0, func(e journal.Event) error {
			got = append(got, e)
			return nil
		})
		if err != nil || version != versions[k] || len(got) != 2 {
			t.Fatalf("%q: %d events up to %d, %v", k, len(got), version, err)
		}
		for _, e := range got {
			if e.Key != k || !strings.HasSuffix(e.ID, " of "+k.Escaped()) {
				t.Errorf("%q holds the event %q of %q", k, e.ID, e.Key)
			}
		}
	}
}

func TestEscapeIsInjectiveAndReadsBack(t *testing.T) {
	part := rapid.OneOf(rapid.SampledFrom(hostile), rapid.StringN(1, 12, -1),
		rapid.StringMatching(`[a.%2E*>{}-]{1,6}`), // where collisions would be
		rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOfN(rapid.Byte(), 1, 8).Draw(t, "bytes")) }))
	keys := rapid.Custom(func(t *rapid.T) journal.Key {
		return journal.Key{Tenant: part.Draw(t, "tenant"), Kind: part.Draw(t, "kind"), ID: part.Draw(t, "id")}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := keys.Draw(t, "a"), keys.Draw(t, "b")
		if (a == b) != (a.Escaped() == b.Escaped()) || (a == b) != (a.Subject("test") == b.Subject("test")) {
			t.Fatalf("%q and %q are %s and %s", a, b, a.Escaped(), b.Escaped())
		}
		back, err := journal.ParseKey(a.Escaped())
		if err != nil || back != a {
			t.Fatalf("%q is %s, which reads back as %q, %v", a, a.Escaped(), back, err)
		}
		if strings.Count(a.Escaped(), ".") != 2 || strings.ContainsAny(a.Escaped(), "*>{} \t\r\n\x00$/") {
			t.Fatalf("%q is %q, which has a meaning", a, a.Escaped())
		}
	})
}

// No second spelling of a key is read, else two subjects were one aggregate.
func TestParseKeyReadsOnlyWhatEscapedWrote(t *testing.T) {
	for _, text := range []string{
		"", "a", "a.b", "a.b.c.d", ".b.c", "a..c", "a.b.", "..", "a.b.%41", "a.b.%2e", "a.b.%", "a.b.%2", "a.b.%zz",
		"a.b.%2E%", "a.b.*", "a.b.>", "a.b.c d", "a.b.é", "a.b.\x00", "a.b.%5f",
	} {
		if k, err := journal.ParseKey(text); err == nil {
			t.Errorf("%q reads as %q", text, k)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a%2E5Ff.-]{0,12}`).Draw(t, "text")
		if k, err := journal.ParseKey(text); err == nil && k.Escaped() != text {
			t.Fatalf("%q reads as %q, which is written %q", text, k, k.Escaped())
		}
	})
}
