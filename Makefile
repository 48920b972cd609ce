# What can be done here, and each line says how. `make` alone prints the list.
#
# Running needs Go alone, testing redis-server and PostgreSQL too. Only gen, check and fmt build the tools in tools/
# (buf takes minutes, once).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

# Flags for the program that the target runs: make up ARGS='--redis=redis://localhost:6379'
ARGS ?=
# Which tests; `work` is every module of go.work: make test PKGS=./services/inbox/...
PKGS ?= work
# More flags for go test: make test TESTFLAGS='-run Approval -v'
TESTFLAGS ?=
# Per package. A hung test names its goroutines long before CI's 90 minutes.
TEST_TIMEOUT ?= 10m

TOOLS := .tools/.built
VALIDATE := .bufdeps/protovalidate/buf/validate/validate.proto

.PHONY: help
help: ## This list
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'
	@echo "  ARGS='...' goes to the program, PKGS= and TESTFLAGS= to go test"

##
## Running
##

# Built and then run, not `go run`: that one answers Ctrl-C with a failure of its own,
# and dies alone when it is killed.
.PHONY: up
up: ## The whole mesh in one process; data in .weir/ (ARGS=)
	@go build -o bin/ ./cmd/weir
	@exec bin/weir up $(ARGS)

.PHONY: demo
demo: ## Agents at work on a mesh of their own (ARGS=)
	@go build -o bin/ ./cmd/weir
	@exec bin/weir demo $(ARGS)

.PHONY: bench
bench: ## Measure this machine (ARGS=)
	@scripts/need-redis.sh
	@scripts/need-postgres.sh
	go run ./bench $(ARGS)

.PHONY: load
load: ## Many writers and readers on the conversation service for a minute (ARGS=)
	@go build -o bin/ ./bench/load
	@exec bin/load $(ARGS)

.PHONY: build
build: ## The weir command and the four services as binaries, in bin/
	go build -o bin/ ./cmd/weir $(patsubst %/,./%,$(wildcard services/*/cmd/*/))

.PHONY: torture
torture: ## Histories of clients on a disturbed inbox, checked (ARGS='-histories N -operations M')
	@scripts/need-redis.sh
	go test -race -count=1 -v -timeout 0 -run 'TestHistories' ./services/inbox $(ARGS)

##
## Changing
##

# need-….sh print to standard error: with TESTFLAGS=-json standard output is a
# stream of JSON for tools/testsum.
.PHONY: test
test: ## Every test, under the race detector, with real Redis and NATS (PKGS= TESTFLAGS=)
	@scripts/need-redis.sh
	@scripts/need-postgres.sh
	@go test -race -timeout $(TEST_TIMEOUT) $(TESTFLAGS) $(PKGS)

.PHONY: check
check: $(TOOLS) $(VALIDATE) ## Formatting, vet, staticcheck, protos, generated code, modules
	@scripts/check.sh

.PHONY: gen
gen: $(TOOLS) $(VALIDATE) ## Generate gen/ from proto/
	@scripts/gen.sh

.PHONY: fmt
fmt: $(TOOLS) ## Format Go and protos in place
	@.tools/gofumpt -modpath weir -w .
	@.tools/buf format -w proto

# `make release-image` at a release, and commit it: buf breaking compares with it.
.PHONY: release-image
release-image: $(TOOLS) $(VALIDATE) ## Record proto/ as released, for the breaking-change check
	@mkdir -p release
	@.tools/buf build proto --exclude-source-info -o release/weir.binpb

.PHONY: tools
tools: $(TOOLS) ## Build buf, grpcurl and the linters into .tools/
	@ls .tools

# All in one go: `go build` works out itself which of them changed. GOWORK=off
# because tools/ is kept out of go.work, so that what buf requires never moves a
# version that the services run with.
$(TOOLS): tools/go.mod tools/go.sum $(wildcard tools/testsum/*.go)
	@echo "building the tools; buf takes some minutes the first time"
	@mkdir -p .tools
	@cd tools && GOWORK=off go build -o ../.tools/ tool ./testsum
	@touch $@

$(VALIDATE): scripts/bufdeps.sh
	@scripts/bufdeps.sh
