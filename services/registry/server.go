package registry

import (
	"context"
	"encoding/base64"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/strictjson"
)

// server is the OperationService.
type server struct {
	registryv1.UnimplementedOperationServiceServer
	env         Env
	gate        gatev1.GateServiceClient
	driver      *driver
	invocations *aggregate.Loop[Invocation, *registryv1.Event]
}

// granted gives those of the names that the caller holds a grant for.
func (s *server) granted(ctx context.Context, caller identity.Caller, names ...string) ([]string, error) {
	answer, err := s.gate.MatchGrants(identity.ActFor(ctx, caller), &gatev1.MatchGrantsRequest{Operations: names})
	if err != nil {
		return nil, err
	}
	return answer.GetGranted(), nil
}

// resolve gives an operation that the caller may ask for. One that it may not,
// and one that does not exist, are the same to it; the gate is asked for both,
// so that they take the same time.
func (s *server) resolve(ctx context.Context, caller identity.Caller, name string) (*Operation, error) {
	operation, ok := s.env.Lookup(name)
	granted, err := s.granted(ctx, caller, name)
	if err != nil {
		return nil, err
	}
	if !ok || operation.Visibility != visibilityExternal || len(granted) == 0 {
		return nil, fault.New(fault.OperationNotFound, "there is no operation of this name").
			Field("operation", "must name an operation that you hold a grant for")
	}
	return operation, nil
}

func (s *server) ListOperations(ctx context.Context, in *registryv1.ListOperationsRequest) (*registryv1.ListOperationsResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	after, err := openNameToken(in.GetPageToken())
	if err != nil {
		return nil, err
	}
	size := int(in.GetPageSize())
	if size == 0 {
		size = 100
	}
	var names []string
	for name := range s.env.Names() {
		if o, ok := s.env.Lookup(name); ok && o.Visibility == visibilityExternal && name > after {
			names = append(names, name)
		}
	}
	out := &registryv1.ListOperationsResponse{}
	// The gate sorts out what is not granted before the page is cut, so a page
	// is never short for another's sake.
	for batch := range slices.Chunk(names, 1000) {
		granted, err := s.granted(ctx, caller, batch...)
		if err != nil {
			return nil, err
		}
		for _, name := range granted {
			if len(out.Operations) == size {
				out.NextPageToken = sealNameToken(out.Operations[size-1].GetName())
				return out, nil
			}
			operation, _ := s.env.Lookup(name)
			out.Operations = append(out.Operations, operationToProto(operation))
		}
	}
	return out, nil
}

// The token of a list of names is the last name.
func sealNameToken(name string) string { return base64.RawURLEncoding.EncodeToString([]byte(name)) }

func openNameToken(token string) (string, error) {
	name, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || token != "" && !namePattern.Match(name) {
		return "", fault.BadPageToken()
	}
	return string(name), nil
}

func (s *server) DescribeOperation(ctx context.Context, in *registryv1.DescribeOperationRequest) (*registryv1.DescribeOperationResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	operation, err := s.resolve(ctx, caller, in.GetOperation())
	if err != nil {
		return nil, err
	}
	return &registryv1.DescribeOperationResponse{Operation: operationToProto(operation)}, nil
}

func (s *server) Invoke(ctx context.Context, in *registryv1.InvokeRequest) (*registryv1.InvokeResponse, error) {
	who, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	var canonical []byte
	var input *string
	if in.InputJson != nil {
		if canonical, err = strictjson.CanonicalField("input_json", in.GetInputJson()); err != nil {
			return nil, err
		}
		text := string(canonical)
		input = &text
	}
	operation, err := s.resolve(ctx, who, in.GetOperation())
	if err != nil {
		return nil, err
	}
	value, err := operation.Input.Validate("input_json", canonical)
	if err != nil {
		return nil, err
	}
	cmd := request{
		ID:           in.GetInvocationId(),
		Operation:    operation.Name,
		SpecDigest:   operation.Digest,
		Input:        input,
		InputDigest:  strictjson.Digest(canonical),
		Conversation: in.GetConversationId(),
		RunningIn:    in.GetConversationId(),
		Caller: caller{
			Subject: who.Subject, Session: who.Session, Confined: who.Confined, OnBehalfOf: who.OnBehalfOf,
		},
	}
	if operation.Kind == kindQuery {
		done, err := s.query(ctx, who, operation, cmd)
		if done != nil || err != nil {
			return &registryv1.InvokeResponse{Invocation: done}, err
		}
	}
	return s.mutate(ctx, who, operation, cmd, value)
}

// query runs a query that the gate allows; it leaves no record. Where the gate
// asks a person, it gives nothing, and the query goes the way of a mutation.
func (s *server) query(ctx context.Context, who identity.Caller, o *Operation, cmd request) (*registryv1.Invocation, error) {
	who.Operation = o.Name
	ctx = identity.ActFor(ctx, who)
	answer, err := s.gate.Check(ctx, checkRequest(cmd.ID, o, cmd.Input, cmd.InputDigest, cmd.RunningIn))
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	i := Invocation{
		ID: cmd.ID, Operation: o.Name, SpecDigest: o.Digest, Input: cmd.Input, InputDigest: cmd.InputDigest,
		Conversation: cmd.Conversation, Caller: cmd.Caller, Created: now, Updated: now,
	}
	switch answer.GetVerdict() {
	case gatev1.Verdict_VERDICT_ASK:
		return nil, nil
	case gatev1.Verdict_VERDICT_ALLOW:
	default:
		i.State = stateDenied
		refusal := denial(answer)
		i.Failure = &refusal
		return invocationToProto(i), nil
	}
	output, err := call(ctx, s.driver.peers, o, retryKey(who.Tenant, cmd.ID), cmd.Input)
	if err != nil && fault.From(err).Kind() == fault.KindUnavailable {
		return nil, err // the client may retry: a query changes nothing
	}
	outcome := outcomeOf(output, err, false)
	i.State, i.Output = outcome.To, outcome.Output
	if outcome.To != stateSucceeded {
		i.Failure = &outcome.Failure
	}
	return invocationToProto(i), nil
}

// mutate records the invocation before anybody is asked, drives it, and waits
// for its outcome as long as the caller does.
func (s *server) mutate(ctx context.Context, who identity.Caller, o *Operation, cmd request, value any) (*registryv1.InvokeResponse, error) {
	if cmd.Conversation == "" {
		cmd.Conversation = o.target(value)
	}
	key := invocationKind().Key(who.Tenant, cmd.ID)
	recorded, err := s.invocations.Do(ctx, key, func(i Invocation, _ time.Time) (*registryv1.Event, error) {
		return decideRequest(i, cmd)
	})
	if err != nil {
		return nil, err
	}
	current, done, err := s.driver.drive(ctx, key)
	if err != nil {
		// It is recorded and is driven on by the clock; say how far it is.
		s.driver.log.Warn("invocation not driven, the clock will", "invocation", key.String(), "error", err)
		return &registryv1.InvokeResponse{Invocation: invocationToProto(recorded.State)}, nil
	}
	if done != nil {
		select {
		case <-done:
		case <-ctx.Done():
		}
		after, err := s.invocations.Read(context.WithoutCancel(ctx), key)
		if err != nil {
			return nil, err
		}
		current = after.State
	}
	return &registryv1.InvokeResponse{Invocation: invocationToProto(current)}, nil
}

func (s *server) GetInvocation(ctx context.Context, in *registryv1.GetInvocationRequest) (*registryv1.GetInvocationResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	found, err := s.invocations.Read(ctx, invocationKind().Key(caller.Tenant, in.GetInvocationId()))
	if err != nil {
		return nil, err
	}
	if !found.Exists() || found.State.Caller.Subject != caller.Subject {
		return nil, fault.New(fault.InvocationNotFound, "there is no invocation %s", in.GetInvocationId())
	}
	return &registryv1.GetInvocationResponse{Invocation: invocationToProto(found.State)}, nil
}

func (s *server) ListInvocations(ctx context.Context, in *registryv1.ListInvocationsRequest) (*registryv1.ListInvocationsResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	items, next, err := s.invocations.List(ctx, aggregate.PageRequest[Invocation]{
		Tenant: caller.Tenant, Lists: []string{callerList(caller.Subject)}, Size: int(in.GetPageSize()), Token: in.GetPageToken(),
	})
	if err != nil {
		return nil, err
	}
	out := &registryv1.ListInvocationsResponse{NextPageToken: next}
	for _, item := range items {
		out.Invocations = append(out.Invocations, invocationToProto(item.State))
	}
	return out, nil
}

func operationToProto(o *Operation) *registryv1.Operation {
	return &registryv1.Operation{
		Name:         o.Name,
		Description:  o.Description,
		Kind:         kindToProto[o.Kind],
		Effect:       effectToProto[o.Effect],
		Visibility:   visibilityToProto[o.Visibility],
		InputSchema:  string(o.Input.Text()),
		OutputSchema: string(o.Output.Text()),
		Digest:       o.Digest,
	}
}

func invocationToProto(i Invocation) *registryv1.Invocation {
	out := &registryv1.Invocation{
		InvocationId:       i.ID,
		Operation:          i.Operation,
		SpecDigest:         i.SpecDigest,
		State:              stateToProto[i.State],
		Caller:             i.Caller.Subject,
		InputJson:          i.Input,
		InputDigest:        i.InputDigest,
		ConversationId:     i.Conversation,
		ApprovalId:         i.ApprovalID,
		AmendedInputJson:   i.Amended,
		AmendedInputDigest: i.AmendedDigest,
		OutputJson:         i.Output,
		CreateTime:         timestamppb.New(i.Created),
		UpdateTime:         timestamppb.New(i.Updated),
	}
	if i.Failure != nil {
		out.Error = &registryv1.InvocationError{Reason: i.Failure.Reason, Message: i.Failure.Message, Note: i.Failure.Note}
	}
	return out
}

var (
	kindToProto = map[kind]registryv1.Kind{
		kindQuery:    registryv1.Kind_KIND_QUERY,
		kindMutation: registryv1.Kind_KIND_MUTATION,
	}
	effectToProto = map[effect]registryv1.Effect{
		effectRead:  registryv1.Effect_EFFECT_READ,
		effectWrite: registryv1.Effect_EFFECT_WRITE,
		effectAdmin: registryv1.Effect_EFFECT_ADMIN,
	}
	visibilityToProto = map[visibility]registryv1.Visibility{
		visibilityExternal: registryv1.Visibility_VISIBILITY_EXTERNAL,
		visibilityInternal: registryv1.Visibility_VISIBILITY_INTERNAL,
	}
)
