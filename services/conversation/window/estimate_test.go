package window_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	conversationv1 "weir/gen/conversation/v1"
	"weir/services/conversation/window"
)

// Every string of every kind of part is counted, also of parts that are yet to be
// invented.
func TestBytesAreThoseOfAllStrings(t *testing.T) {
	for i := range (&conversationv1.Part{}).ProtoReflect().Descriptor().Fields().Len() {
		part := &conversationv1.Part{}
		field := part.ProtoReflect().Descriptor().Fields().Get(i)
		want := 0
		if field.Kind() == protoreflect.StringKind {
			part.ProtoReflect().Set(field, protoreflect.ValueOfString("12345"))
			want = 5
		} else {
			want = fill(part.ProtoReflect().Mutable(field).Message())
		}
		m := &conversationv1.Message{Parts: []*conversationv1.Part{part, proto.CloneOf(part)}}
		if got := window.Bytes(m); want == 0 || got != 2*int64(want) {
			t.Errorf("two of %v have %d bytes, want 2 times %d", part, got, want)
		}
	}
}

// fill sets all strings of a message, to different lengths.
func fill(m protoreflect.Message) int {
	total := 0
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		value := protoreflect.ValueOfString("0123456789abcdefgh"[:i+1])
		switch {
		case f.Kind() == protoreflect.StringKind && f.IsList():
			list := m.Mutable(f).List()
			list.Append(value)
			list.Append(value)
			total += 2 * (i + 1)
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, value)
			total += i + 1
		}
	}
	return total
}

func TestTokensAreBytesDividedAndRoundedUpAndSomeForTheMessage(t *testing.T) {
	for _, tc := range []struct {
		bytes int
		b     *conversationv1.TokenBudget
		want  int64
	}{
		{0, &conversationv1.TokenBudget{}, 0},
		{1, &conversationv1.TokenBudget{}, 1},
		{4, &conversationv1.TokenBudget{}, 1},
		{5, &conversationv1.TokenBudget{}, 2},
		{0, &conversationv1.TokenBudget{TokensPerMessage: 3}, 3},
		{5, &conversationv1.TokenBudget{TokensPerMessage: 3}, 5},
		{5, &conversationv1.TokenBudget{BytesPerToken: 0.5}, 10},
		{16, &conversationv1.TokenBudget{BytesPerToken: 16}, 1},
		{17, &conversationv1.TokenBudget{BytesPerToken: 16}, 2},
		{7, &conversationv1.TokenBudget{BytesPerToken: 3.5}, 2},
		{8, &conversationv1.TokenBudget{BytesPerToken: 3.5}, 3},
	} {
		m := &conversationv1.Message{Parts: []*conversationv1.Part{text(tc.bytes)}}
		if got := window.Tokens(tc.b)(m); got != tc.want {
			t.Errorf("%d bytes are %d tokens by %v, want %d", tc.bytes, got, tc.b, tc.want)
		}
	}
}

// A message is rounded up as a whole, not part by part.
func TestPartsAreRoundedTogether(t *testing.T) {
	m := &conversationv1.Message{Parts: []*conversationv1.Part{text(1), text(1), text(2)}}
	if got := window.Tokens(&conversationv1.TokenBudget{})(m); got != 1 {
		t.Errorf("4 bytes in 3 parts are %d tokens, want 1", got)
	}
}
