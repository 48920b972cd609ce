package inbox

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
)

// hostile are goals that must be refused by the name of their field.
var hostile = []string{"../x", "a/b", "", ".x", strings.Repeat("x", 65), "a b", "a\n", "a\x00", "*", "a>", "ä", "-a"}

// sound is a request of each RPC that nothing is wrong with.
var sound = map[string]proto.Message{
	"Enqueue": &inboxv1.EnqueueRequest{Goal: "build", MessageId: "m", Body: "x"},
	"EnqueueBatch": &inboxv1.EnqueueBatchRequest{Goal: "build", Messages: []*inboxv1.NewMessage{
		{MessageId: "m", Body: "x"}, {MessageId: "n", Body: "x"},
	}},
	"Claim":       &inboxv1.ClaimRequest{Goal: "build", RequestId: "r"},
	"Extend":      &inboxv1.ExtendRequest{Goal: "build", MessageIds: []string{"m"}, ClaimToken: "t"},
	"Done":        &inboxv1.DoneRequest{Goal: "build", MessageIds: []string{"m"}, ClaimToken: "t"},
	"Release":     &inboxv1.ReleaseRequest{Goal: "build", MessageIds: []string{"m"}, ClaimToken: "t"},
	"Peek":        &inboxv1.PeekRequest{Goal: "build"},
	"GetInbox":    &inboxv1.GetInboxRequest{Goal: "build"},
	"ListInboxes": &inboxv1.ListInboxesRequest{},
	"ListDead":    &inboxv1.ListDeadRequest{Goal: "build"},
	"Redrive":     &inboxv1.RedriveRequest{Goal: "build", MessageIds: []string{"m"}},
	"DiscardDead": &inboxv1.DiscardDeadRequest{Goal: "build", MessageIds: []string{"m"}},
	"PauseInbox":  &inboxv1.PauseInboxRequest{Goal: "build"},
	"ResumeInbox": &inboxv1.ResumeInboxRequest{Goal: "build"},
	"DrainInbox":  &inboxv1.DrainInboxRequest{Goal: "build"},
	"ImportGoal":  &inboxv1.ImportGoalRequest{Goal: "build", StateJson: "{}"},
}

// bad are values that must be refused, for the fields with these names or types.
func bad(f protoreflect.FieldDescriptor) []protoreflect.Value {
	var values []protoreflect.Value
	switch name := f.Name(); {
	case name == "goal" || name == "message_id" || name == "message_ids" || name == "request_id":
		for _, id := range hostile {
			values = append(values, protoreflect.ValueOfString(id))
		}
	case f.Message() != nil && f.Message().Name() == "Duration":
		for _, d := range []*durationpb.Duration{
			{Seconds: -1}, {Nanos: -1}, {Seconds: 43201}, {Seconds: 1, Nanos: -5}, {Seconds: 1, Nanos: 2_000_000_000}, {Seconds: 1 << 62},
		} {
			values = append(values, protoreflect.ValueOfMessage(d.ProtoReflect()))
		}
	case f.Message() != nil && f.Message().Name() == "Timestamp":
		far := timestamppb.New(time.Now().Add(maxDelay + time.Hour))
		past := timestamppb.New(time.Now().Add(-time.Second))
		for _, at := range []*timestamppb.Timestamp{{Nanos: -1}, {Seconds: 1 << 60}, map[protoreflect.Name]*timestamppb.Timestamp{
			"not_before": far, "expire_time": past,
		}[name]} {
			values = append(values, protoreflect.ValueOfMessage(at.ProtoReflect()))
		}
	case name == "priority":
		values = append(values, protoreflect.ValueOfInt32(-101), protoreflect.ValueOfInt32(101))
	case name == "max" || name == "page_size":
		values = append(values, protoreflect.ValueOfInt32(-1), protoreflect.ValueOfInt32(1001))
	case name == "busy_policy":
		values = append(values, protoreflect.ValueOfEnum(99))
	case name == "busy_key": // without a policy that looks at it, or too long
		values = append(values, protoreflect.ValueOfString("k"), protoreflect.ValueOfString(strings.Repeat("k", 129)))
	case name == "body" || name == "claim_token":
		values = append(values, protoreflect.ValueOfString(""))
	case name == "note":
		values = append(values, protoreflect.ValueOfString(strings.Repeat("x", 501)))
	case name == "page_token":
		values = append(values, protoreflect.ValueOfString("x"), protoreflect.ValueOfString(strings.Repeat("x", 513)))
	}
	return values
}

// Each field of each RPC, with each value that it must refuse: the refusal names the
// field, and nothing comes of it.
func TestWhatIsBadIsRefusedByTheNameOfItsField(t *testing.T) {
	r := newRig(t)
	conn := r.issuer.Dial(r.inbox.Addr, worker)
	service := inboxv1.File_weir_inbox_v1_inbox_service_proto.Services().ByName("InboxService")
	for i := range service.Methods().Len() {
		method := service.Methods().Get(i)
		if method.IsStreamingClient() {
			continue
		}
		name := string(method.Name())
		if sound[name] == nil {
			t.Errorf("there is no sound request of %s", name)
			continue
		}
		refused := func(in proto.Message, field string) {
			t.Helper()
			err := conn.Invoke(t.Context(), "/weir.inbox.v1.InboxService/"+name, in, newMessageOf(method.Output()))
			wantField(t, fmt.Sprint(name, " ", in), err, field)
		}
		fields := method.Input().Fields()
		for i := range fields.Len() {
			field := fields.Get(i)
			for _, value := range bad(field) {
				in := proto.Clone(sound[name])
				if field.IsList() {
					in.ProtoReflect().Mutable(field).List().Set(0, value)
					refused(in, string(field.Name())+"[0]")
				} else {
					in.ProtoReflect().Set(field, value)
					refused(in, string(field.Name()))
				}
			}
		}
		if name != "EnqueueBatch" {
			continue
		}
		of := (&inboxv1.NewMessage{}).ProtoReflect().Descriptor().Fields()
		for i := range of.Len() {
			for _, value := range bad(of.Get(i)) {
				in := proto.CloneOf(sound[name].(*inboxv1.EnqueueBatchRequest))
				in.Messages[1].ProtoReflect().Set(of.Get(i), value)
				refused(in, "messages[1]."+string(of.Get(i).Name()))
			}
		}
	}
	w := r.as(worker)
	_, err := w.Enqueue(t.Context(), &inboxv1.EnqueueRequest{Goal: "build", MessageId: deliveredPrefix + "x", Body: "x"})
	wantField(t, "an id of a delivery", err, "message_id")
	_, err = w.EnqueueBatch(t.Context(), &inboxv1.EnqueueBatchRequest{Goal: "build", Messages: []*inboxv1.NewMessage{
		{MessageId: "m", Body: "x"}, {MessageId: "m", Body: "x"},
	}})
	wantField(t, "an id twice", err, "messages[1].message_id")
	_, err = w.EnqueueBatch(t.Context(), &inboxv1.EnqueueBatchRequest{Goal: "build"})
	wantField(t, "no messages", err, "messages")
	_, err = w.Done(t.Context(), &inboxv1.DoneRequest{Goal: "build", MessageIds: []string{"m", "m"}, ClaimToken: "t"})
	wantField(t, "an id twice", err, "message_ids")
	_, err = w.GetInbox(t.Context(), &inboxv1.GetInboxRequest{Goal: "build"})
	wantReason(t, err, fault.InboxNotFound) // nothing came of any of them
}

// newMessageOf is an empty message of a generated type.
func newMessageOf(d protoreflect.MessageDescriptor) proto.Message {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(err)
	}
	return t.New().Interface()
}

func TestHostileItemsAreRefusedByTheNameOfTheirField(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	for _, goal := range hostile {
		refused := map[string]error{}
		_, refused["Begin"] = w.Begin(t.Context(), &inboxv1.BeginRequest{Goal: goal, Item: "i"})
		_, refused["MarkSent"] = w.MarkSent(t.Context(), &inboxv1.MarkSentRequest{Goal: goal, Item: "i", ConversationId: "c"})
		_, refused["GetDispatch"] = w.GetDispatch(t.Context(), &inboxv1.GetDispatchRequest{Goal: goal, Item: "i"})
		for method, err := range refused {
			wantField(t, method+" "+fmt.Sprintf("%q", goal), err, "goal")
		}
	}
	for _, item := range []string{"", " ", "\u00a0", "a\n", "a\x00", strings.Repeat("ä", 129)} {
		_, err := w.Begin(t.Context(), &inboxv1.BeginRequest{Goal: "build", Item: item})
		wantField(t, fmt.Sprintf("item %q", item), err, "item")
	}
}

func wantField(t *testing.T, what string, err error, field string) {
	t.Helper()
	refusal := fault.From(err)
	if refusal == nil || refusal.Kind() != fault.KindInvalid {
		t.Fatalf("%s: %v, want a refusal of %s", what, err, field)
	}
	for _, v := range refusal.Violations() {
		if v.Field == field {
			return
		}
	}
	t.Fatalf("%s: %v does not name the field %s", what, refusal.Violations(), field)
}
