package fault

// Reason names one way to fail. Clients switch on it, so a reason is never renamed
// and never changes its kind.
type Reason string

const (
	// The request itself is wrong and always will be.
	IDMalformed      Reason = "ID_MALFORMED"
	FieldInvalid     Reason = "FIELD_INVALID"
	TooLarge         Reason = "TOO_LARGE"
	JSONInvalid      Reason = "JSON_INVALID"
	SchemaMismatch   Reason = "SCHEMA_MISMATCH"
	NoteRequired     Reason = "NOTE_REQUIRED"
	PolicyUnsafe     Reason = "POLICY_UNSAFE"
	PageTokenInvalid Reason = "PAGE_TOKEN_INVALID"
	BudgetTooSmall   Reason = "BUDGET_TOO_SMALL"

	// Who is calling is not known.
	TokenMissing Reason = "TOKEN_MISSING"
	TokenInvalid Reason = "TOKEN_INVALID"

	// The caller is known, and may not.
	CallerDisabled       Reason = "CALLER_DISABLED"
	ScopeMissing         Reason = "SCOPE_MISSING"
	NotGranted           Reason = "NOT_GRANTED"
	SelfApproval         Reason = "SELF_APPROVAL"
	AgentAdmin           Reason = "AGENT_ADMIN"
	Confined             Reason = "CONFINED"
	NotAPerson           Reason = "NOT_A_PERSON"
	ApproverScopeMissing Reason = "APPROVER_SCOPE_MISSING"
	SelfTarget           Reason = "SELF_TARGET"
	NotOwner             Reason = "NOT_OWNER"
	NotAuthor            Reason = "NOT_AUTHOR"
	NotWorker            Reason = "NOT_WORKER"
	NotYourTurn          Reason = "NOT_YOUR_TURN"
	PolicyDenied         Reason = "POLICY_DENIED"
	AskLimit             Reason = "ASK_LIMIT"

	// No such thing in the caller's tenant.
	OperationNotFound    Reason = "OPERATION_NOT_FOUND"
	InvocationNotFound   Reason = "INVOCATION_NOT_FOUND"
	ApprovalNotFound     Reason = "APPROVAL_NOT_FOUND"
	GrantNotFound        Reason = "GRANT_NOT_FOUND"
	PolicyNotFound       Reason = "POLICY_NOT_FOUND"
	TrustNotFound        Reason = "TRUST_NOT_FOUND"
	ConversationNotFound Reason = "CONVERSATION_NOT_FOUND"
	MessageNotFound      Reason = "MESSAGE_NOT_FOUND"
	CallNotFound         Reason = "CALL_NOT_FOUND"
	GroupNotFound        Reason = "GROUP_NOT_FOUND"
	ErasureNotFound      Reason = "ERASURE_NOT_FOUND"
	InboxNotFound        Reason = "INBOX_NOT_FOUND"
	DispatchNotFound     Reason = "DISPATCH_NOT_FOUND"

	// The id is taken.
	IdempotencyMismatch Reason = "IDEMPOTENCY_MISMATCH"
	AlreadyExists       Reason = "ALREADY_EXISTS"

	// The thing is in a state that does not allow it.
	StaleClaim         Reason = "STALE_CLAIM"
	InboxBusy          Reason = "INBOX_BUSY"
	InboxDraining      Reason = "INBOX_DRAINING"
	ApprovalPending    Reason = "APPROVAL_PENDING"
	ApprovalDecided    Reason = "APPROVAL_DECIDED"
	ApprovalDenied     Reason = "APPROVAL_DENIED"
	ApprovalExpired    Reason = "APPROVAL_EXPIRED"
	ApprovalCancelled  Reason = "APPROVAL_CANCELLED"
	ApprovalRedeemed   Reason = "APPROVAL_REDEEMED"
	ApprovalSuperseded Reason = "APPROVAL_SUPERSEDED"
	AmendmentRefused   Reason = "AMENDMENT_REFUSED"
	DigestMismatch     Reason = "DIGEST_MISMATCH"
	ConversationClosed Reason = "CONVERSATION_CLOSED"
	ConversationPaused Reason = "CONVERSATION_PAUSED"
	HeadMoved          Reason = "HEAD_MOVED"
	OffsetMismatch     Reason = "OFFSET_MISMATCH"
	DispatchMismatch   Reason = "DISPATCH_MISMATCH"
	StateConflict      Reason = "STATE_CONFLICT"
	AuditKeyMissing    Reason = "AUDIT_KEY_MISSING"

	// A cap was reached.
	InboxFull        Reason = "INBOX_FULL"
	ConversationFull Reason = "CONVERSATION_FULL"
	LimitReached     Reason = "LIMIT_REACHED"
	RateLimited      Reason = "RATE_LIMITED"
	ReaderTooSlow    Reason = "READER_TOO_SLOW"

	// The place asked for is no longer, or not yet, there.
	CursorUnavailable Reason = "CURSOR_UNAVAILABLE"

	// Others kept winning; nothing was done.
	Contention Reason = "CONTENTION"

	// Something weir needs is away; nothing was done.
	JournalUnavailable Reason = "JOURNAL_UNAVAILABLE"
	HotUnavailable     Reason = "HOT_UNAVAILABLE"
	IndexRebuilding    Reason = "INDEX_REBUILDING"
	PeerUnavailable    Reason = "PEER_UNAVAILABLE"
	PolicyUnreadable   Reason = "POLICY_UNREADABLE"
	ShuttingDown       Reason = "SHUTTING_DOWN"

	// Stored bytes cannot be decoded; they are left as they are.
	EventUnreadable    Reason = "EVENT_UNREADABLE"
	DocumentUnreadable Reason = "DOCUMENT_UNREADABLE"

	// Weir broke its own rules.
	Bug Reason = "BUG"

	// The client went away.
	Cancelled Reason = "CANCELLED"

	// Time ran out; whether it was done is not known.
	DeadlineExceeded Reason = "DEADLINE_EXCEEDED"
)

// reasons gives each reason its one kind.
var reasons = map[Reason]Kind{
	IDMalformed:      KindInvalid,
	FieldInvalid:     KindInvalid,
	TooLarge:         KindInvalid,
	JSONInvalid:      KindInvalid,
	SchemaMismatch:   KindInvalid,
	NoteRequired:     KindInvalid,
	PolicyUnsafe:     KindInvalid,
	PageTokenInvalid: KindInvalid,
	BudgetTooSmall:   KindInvalid,

	TokenMissing: KindUnauthenticated,
	TokenInvalid: KindUnauthenticated,

	CallerDisabled:       KindForbidden,
	ScopeMissing:         KindForbidden,
	NotGranted:           KindForbidden,
	SelfApproval:         KindForbidden,
	AgentAdmin:           KindForbidden,
	Confined:             KindForbidden,
	NotAPerson:           KindForbidden,
	ApproverScopeMissing: KindForbidden,
	SelfTarget:           KindForbidden,
	NotOwner:             KindForbidden,
	NotAuthor:            KindForbidden,
	NotWorker:            KindForbidden,
	NotYourTurn:          KindForbidden,
	PolicyDenied:         KindForbidden,
	AskLimit:             KindForbidden,

	OperationNotFound:    KindNotFound,
	InvocationNotFound:   KindNotFound,
	ApprovalNotFound:     KindNotFound,
	GrantNotFound:        KindNotFound,
	PolicyNotFound:       KindNotFound,
	TrustNotFound:        KindNotFound,
	ConversationNotFound: KindNotFound,
	MessageNotFound:      KindNotFound,
	CallNotFound:         KindNotFound,
	GroupNotFound:        KindNotFound,
	ErasureNotFound:      KindNotFound,
	InboxNotFound:        KindNotFound,
	DispatchNotFound:     KindNotFound,

	IdempotencyMismatch: KindExists,
	AlreadyExists:       KindExists,

	StaleClaim:         KindPrecondition,
	InboxBusy:          KindPrecondition,
	InboxDraining:      KindPrecondition,
	ApprovalPending:    KindPrecondition,
	ApprovalDecided:    KindPrecondition,
	ApprovalDenied:     KindPrecondition,
	ApprovalExpired:    KindPrecondition,
	ApprovalCancelled:  KindPrecondition,
	ApprovalRedeemed:   KindPrecondition,
	ApprovalSuperseded: KindPrecondition,
	AmendmentRefused:   KindPrecondition,
	DigestMismatch:     KindPrecondition,
	ConversationClosed: KindPrecondition,
	ConversationPaused: KindPrecondition,
	HeadMoved:          KindPrecondition,
	OffsetMismatch:     KindPrecondition,
	DispatchMismatch:   KindPrecondition,
	StateConflict:      KindPrecondition,
	AuditKeyMissing:    KindPrecondition,

	InboxFull:        KindExhausted,
	ConversationFull: KindExhausted,
	LimitReached:     KindExhausted,
	RateLimited:      KindExhausted,
	ReaderTooSlow:    KindExhausted,

	CursorUnavailable: KindOutOfRange,

	Contention: KindContention,

	JournalUnavailable: KindUnavailable,
	HotUnavailable:     KindUnavailable,
	IndexRebuilding:    KindUnavailable,
	PeerUnavailable:    KindUnavailable,
	PolicyUnreadable:   KindUnavailable,
	ShuttingDown:       KindUnavailable,

	EventUnreadable:    KindUnreadable,
	DocumentUnreadable: KindUnreadable,

	Bug: KindBug,

	Cancelled: KindCancelled,

	DeadlineExceeded: KindDeadlineExceeded,
}

// Kind is the kind every error with this reason has. A reason without a row is a
// mistake of ours, and shows as one.
func (r Reason) Kind() Kind { return reasons[r] }
