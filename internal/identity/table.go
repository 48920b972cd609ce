package identity

import (
	conversationv1 "weir/gen/conversation/v1"
	gatev1 "weir/gen/gate/v1"
	inboxv1 "weir/gen/inbox/v1"
	registryv1 "weir/gen/registry/v1"
)

// The registry runs operations for callers that may be long gone, and the inbox sends
// what was dispatched and asks whether senders still may. Nobody else acts for others.
var (
	onlyRegistry     = []string{"service:registry"}
	registryAndInbox = []string{"service:registry", "service:inbox"}
)

// Methods is the one list of what may be called by whom, over all services.
//
// Agents are given no scope that writes into conversations or inboxes of others: they
// get there by invoking an operation, which the gate decides on.
var Methods = Table{
	"/grpc.health.v1.Health/Check": {Public: true},
	"/grpc.health.v1.Health/List":  {Public: true},
	"/grpc.health.v1.Health/Watch": {Public: true},

	reflectionMethods[0]: {Scopes: []string{"weir.reflect"}, Tenantless: true},
	reflectionMethods[1]: {Scopes: []string{"weir.reflect"}, Tenantless: true},

	gatev1.GateService_Check_FullMethodName:              {Scopes: []string{"gate.check"}, ActsFor: onlyRegistry},
	gatev1.GateService_CheckBatch_FullMethodName:         {Scopes: []string{"gate.check"}, ActsFor: onlyRegistry},
	gatev1.GateService_MatchGrants_FullMethodName:        {Scopes: []string{"gate.check"}, ActsFor: onlyRegistry},
	gatev1.GateService_CheckStanding_FullMethodName:      {Scopes: []string{"gate.check"}, ActsFor: registryAndInbox},
	gatev1.GateService_AnnounceOperations_FullMethodName: {Scopes: []string{"gate.check"}, Tenantless: true},
	gatev1.GateService_Redeem_FullMethodName:             {Scopes: []string{"gate.check"}, ActsFor: onlyRegistry},

	gatev1.ApprovalService_GetApproval_FullMethodName:     {Scopes: []string{"approval.read", "approval.decide"}},
	gatev1.ApprovalService_ListApprovals_FullMethodName:   {Scopes: []string{"approval.read", "approval.decide"}},
	gatev1.ApprovalService_WatchApprovals_FullMethodName:  {Scopes: []string{"approval.read", "approval.decide"}},
	gatev1.ApprovalService_DecideApproval_FullMethodName:  {Scopes: []string{"approval.decide"}},
	gatev1.ApprovalService_DecideApprovals_FullMethodName: {Scopes: []string{"approval.decide"}},
	gatev1.ApprovalService_ListTrusts_FullMethodName:      {Scopes: []string{"approval.read", "approval.decide"}},
	gatev1.ApprovalService_RevokeTrust_FullMethodName:     {Scopes: []string{"approval.decide", "policy.admin"}},
	gatev1.ApprovalService_CancelApproval_FullMethodName:  {Scopes: []string{"approval.cancel"}},

	gatev1.PolicyService_PutGrant_FullMethodName:            {Scopes: []string{"policy.admin"}},
	gatev1.PolicyService_GetGrant_FullMethodName:            {Scopes: []string{"policy.read", "policy.admin"}},
	gatev1.PolicyService_ListGrants_FullMethodName:          {Scopes: []string{"policy.read", "policy.admin"}},
	gatev1.PolicyService_DeleteGrant_FullMethodName:         {Scopes: []string{"policy.admin"}},
	gatev1.PolicyService_PutPolicy_FullMethodName:           {Scopes: []string{"policy.admin"}},
	gatev1.PolicyService_GetPolicy_FullMethodName:           {Scopes: []string{"policy.read", "policy.admin"}},
	gatev1.PolicyService_ListPolicies_FullMethodName:        {Scopes: []string{"policy.read", "policy.admin"}},
	gatev1.PolicyService_ListPolicyRevisions_FullMethodName: {Scopes: []string{"policy.read", "policy.admin"}},
	gatev1.PolicyService_DeletePolicy_FullMethodName:        {Scopes: []string{"policy.admin"}},
	gatev1.PolicyService_VerifyPolicy_FullMethodName:        {Scopes: []string{"policy.read", "policy.admin"}},
	gatev1.PolicyService_ExplainCheck_FullMethodName:        {Scopes: []string{"policy.read", "policy.admin"}},
	gatev1.PolicyService_TestPolicy_FullMethodName:          {Scopes: []string{"policy.read", "policy.admin"}},

	gatev1.AuditService_ListRecords_FullMethodName:      {Scopes: []string{"audit.read"}},
	gatev1.AuditService_GetCheckpoint_FullMethodName:    {Scopes: []string{"audit.read"}},
	gatev1.AuditService_ProveInclusion_FullMethodName:   {Scopes: []string{"audit.read"}},
	gatev1.AuditService_ProveConsistency_FullMethodName: {Scopes: []string{"audit.read"}},

	registryv1.OperationService_ListOperations_FullMethodName:    {Scopes: []string{"operation.read", "operation.invoke"}},
	registryv1.OperationService_DescribeOperation_FullMethodName: {Scopes: []string{"operation.read", "operation.invoke"}},
	registryv1.OperationService_Invoke_FullMethodName:            {Scopes: []string{"operation.invoke"}},
	registryv1.OperationService_GetInvocation_FullMethodName:     {Scopes: []string{"operation.read", "operation.invoke"}},
	registryv1.OperationService_ListInvocations_FullMethodName:   {Scopes: []string{"operation.read", "operation.invoke"}},

	conversationv1.ConversationService_CreateConversation_FullMethodName:  {Scopes: []string{"conversation.write"}, ActsFor: registryAndInbox},
	conversationv1.ConversationService_GetConversation_FullMethodName:     {Scopes: []string{"conversation.read", "conversation.admin", "approval.decide", "conversation.erase"}, ActsFor: registryAndInbox},
	conversationv1.ConversationService_ListConversations_FullMethodName:   {Scopes: []string{"conversation.read"}, ActsFor: onlyRegistry},
	conversationv1.ConversationService_UpdateConversation_FullMethodName:  {Scopes: []string{"conversation.write", "conversation.admin"}, ActsFor: onlyRegistry},
	conversationv1.ConversationService_CloseConversation_FullMethodName:   {Scopes: []string{"conversation.write", "conversation.admin"}, ActsFor: onlyRegistry},
	conversationv1.ConversationService_ReopenConversation_FullMethodName:  {Scopes: []string{"conversation.write", "conversation.admin"}, ActsFor: onlyRegistry},
	conversationv1.ConversationService_ArchiveConversation_FullMethodName: {Scopes: []string{"conversation.write", "conversation.admin"}, ActsFor: onlyRegistry},
	conversationv1.ConversationService_ForkConversation_FullMethodName:    {Scopes: []string{"conversation.write"}, ActsFor: onlyRegistry},

	conversationv1.MessageService_AppendMessage_FullMethodName:  {Scopes: []string{"conversation.write"}, ActsFor: registryAndInbox},
	conversationv1.MessageService_AppendMessages_FullMethodName: {Scopes: []string{"conversation.write"}, ActsFor: onlyRegistry},
	conversationv1.MessageService_AppendDelta_FullMethodName:    {Scopes: []string{"conversation.write"}, ActsFor: onlyRegistry},
	conversationv1.MessageService_ListMessages_FullMethodName:   {Scopes: []string{"conversation.read", "conversation.admin", "approval.decide"}, ActsFor: onlyRegistry},
	conversationv1.MessageService_GetMessage_FullMethodName:     {Scopes: []string{"conversation.read", "conversation.admin", "approval.decide"}, ActsFor: onlyRegistry},
	conversationv1.MessageService_TailMessages_FullMethodName:   {Scopes: []string{"conversation.read", "conversation.admin", "approval.decide"}, ActsFor: onlyRegistry},
	conversationv1.MessageService_GetContext_FullMethodName:     {Scopes: []string{"conversation.read", "conversation.admin", "approval.decide"}, ActsFor: onlyRegistry},
	conversationv1.MessageService_SearchMessages_FullMethodName: {Scopes: []string{"conversation.read"}, ActsFor: onlyRegistry},
	conversationv1.MessageService_RedactMessage_FullMethodName:  {Scopes: []string{"conversation.write", "conversation.erase"}, ActsFor: onlyRegistry},
	conversationv1.MessageService_DeclineTurn_FullMethodName:    {Scopes: []string{"conversation.write"}, ActsFor: onlyRegistry},

	conversationv1.GroupService_PutGroup_FullMethodName:    {Scopes: []string{"conversation.write"}, ActsFor: onlyRegistry},
	conversationv1.GroupService_GetGroup_FullMethodName:    {Scopes: []string{"conversation.read", "conversation.admin"}, ActsFor: onlyRegistry},
	conversationv1.GroupService_ListGroups_FullMethodName:  {Scopes: []string{"conversation.read"}, ActsFor: onlyRegistry},
	conversationv1.GroupService_DeleteGroup_FullMethodName: {Scopes: []string{"conversation.write", "conversation.admin"}, ActsFor: onlyRegistry},

	conversationv1.RetentionService_DeleteConversation_FullMethodName:    {Scopes: []string{"conversation.erase"}},
	conversationv1.RetentionService_DeleteParticipantData_FullMethodName: {Scopes: []string{"conversation.erase"}},
	conversationv1.RetentionService_GetParticipantErasure_FullMethodName: {Scopes: []string{"conversation.erase"}},
	conversationv1.RetentionService_ExportConversation_FullMethodName:    {Scopes: []string{"conversation.admin"}},
	conversationv1.RetentionService_ImportConversation_FullMethodName:    {Scopes: []string{"conversation.admin"}},
	conversationv1.RetentionService_PutRetention_FullMethodName:          {Scopes: []string{"conversation.admin"}},
	conversationv1.RetentionService_GetRetention_FullMethodName:          {Scopes: []string{"conversation.admin"}},

	inboxv1.InboxService_Enqueue_FullMethodName:      {Scopes: []string{"inbox.enqueue"}, ActsFor: onlyRegistry},
	inboxv1.InboxService_EnqueueBatch_FullMethodName: {Scopes: []string{"inbox.enqueue"}, ActsFor: onlyRegistry},
	inboxv1.InboxService_Claim_FullMethodName:        {Scopes: []string{"inbox.claim"}},
	inboxv1.InboxService_Extend_FullMethodName:       {Scopes: []string{"inbox.claim"}},
	inboxv1.InboxService_Done_FullMethodName:         {Scopes: []string{"inbox.claim"}},
	inboxv1.InboxService_Release_FullMethodName:      {Scopes: []string{"inbox.claim"}},
	inboxv1.InboxService_Peek_FullMethodName:         {Scopes: []string{"inbox.claim", "inbox.operate"}},
	inboxv1.InboxService_GetInbox_FullMethodName:     {Scopes: []string{"inbox.claim", "inbox.operate"}},
	inboxv1.InboxService_ListInboxes_FullMethodName:  {Scopes: []string{"inbox.claim", "inbox.operate"}},
	inboxv1.InboxService_WatchInboxes_FullMethodName: {Scopes: []string{"inbox.claim", "inbox.operate"}},
	inboxv1.InboxService_ListDead_FullMethodName:     {Scopes: []string{"inbox.claim", "inbox.operate"}},
	inboxv1.InboxService_Redrive_FullMethodName:      {Scopes: []string{"inbox.operate"}},
	inboxv1.InboxService_DiscardDead_FullMethodName:  {Scopes: []string{"inbox.operate"}},
	inboxv1.InboxService_PauseInbox_FullMethodName:   {Scopes: []string{"inbox.operate"}},
	inboxv1.InboxService_ResumeInbox_FullMethodName:  {Scopes: []string{"inbox.operate"}},
	inboxv1.InboxService_DrainInbox_FullMethodName:   {Scopes: []string{"inbox.operate"}},
	inboxv1.InboxService_ImportGoal_FullMethodName:   {Scopes: []string{"inbox.operate"}},

	// An agent gives work away with its own words in the record, but reaches into the
	// worker's conversations and inbox only by the operation dispatch/start.
	inboxv1.DispatchService_Begin_FullMethodName:           {Scopes: []string{"dispatch.write"}},
	inboxv1.DispatchService_MarkSent_FullMethodName:        {Scopes: []string{"dispatch.write"}},
	inboxv1.DispatchService_Dispatch_FullMethodName:        {Scopes: []string{"dispatch.send"}, ActsFor: onlyRegistry},
	inboxv1.DispatchService_Report_FullMethodName:          {Scopes: []string{"dispatch.report"}},
	inboxv1.DispatchService_Accept_FullMethodName:          {Scopes: []string{"dispatch.write"}},
	inboxv1.DispatchService_Reject_FullMethodName:          {Scopes: []string{"dispatch.write"}},
	inboxv1.DispatchService_Abandon_FullMethodName:         {Scopes: []string{"dispatch.write", "inbox.operate"}},
	inboxv1.DispatchService_GetDispatch_FullMethodName:     {Scopes: []string{"dispatch.read", "dispatch.write", "dispatch.report"}},
	inboxv1.DispatchService_ListDispatches_FullMethodName:  {Scopes: []string{"dispatch.read", "dispatch.write", "dispatch.report"}},
	inboxv1.DispatchService_GetGoal_FullMethodName:         {Scopes: []string{"dispatch.read", "dispatch.write"}},
	inboxv1.DispatchService_WatchDispatches_FullMethodName: {Scopes: []string{"dispatch.read", "dispatch.write", "dispatch.report"}},
}

// reflectionMethods is what OpenReflection opens. grpcurl tries the first and falls back to
// the second.
var reflectionMethods = [...]string{
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
}
