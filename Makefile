# Targets to build, test and check Servo. Plain `make` lists them.

GOLANGCI_VERSION := v2.15.0
GOLANGCI := .cache/golangci-lint/$(GOLANGCI_VERSION)/golangci-lint

# `make race` covers the packages in which goroutines share data, except those that need DuckDB, which would take
# minutes to build again.
RACE := $(addprefix ./pkg/,$(addsuffix /...,blob queue ledger archive manifest tiers snapshot compactor wakeup engine automator notifier dispatcher sweeper service))

FUZZTIME ?= 30s
SEEDS ?= 1000
FIRST ?= 0
WORLD ?=
PKG ?= ./pkg/...
COUNT ?= 5
SAMPLES ?= 3
PEERS ?=
VULNDB ?=

# The steps of `make check`, in order: quick steps first, the tests last.
STEPS := fmt-check build vet lint proto-check ui-check ui-test demo demo-shop api-check test race images worlds

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the programs into bin/
	@mkdir -p bin
	go build -o bin/ ./cmd/...

.PHONY: servo
servo: ## build bin/servo only
	@mkdir -p bin
	go build -o bin/servo ./cmd/servo

.PHONY: demo
demo: servo ## run a year of the weather example, and query it
	@scripts/demo

.PHONY: demo-shop
demo-shop: servo ## run the shop example: 37 assets, hours of two time zones, a check that stops a bad day
	@scripts/demo-shop

.PHONY: footprint
footprint: servo ## check how much space three years of daily partitions use (a minute on an idle machine)
	@scripts/footprint

# `make worlds` simulates the same worlds for every commit, so its result depends on the code alone.
# `make simulate` explores others.
WORLDS := 777000001 778000001

.PHONY: test
test: ## run all tests
	go test ./...
	go -C tests/fakegcs test ./...

.PHONY: worlds
worlds: ## simulate 200 worlds
	for first in $(WORLDS); do \
	  go test ./tests/simulation -count 1 -timeout 20m -run TestWorldsKeep -seeds 100 -first $$first || exit 1; \
	done

.PHONY: chaos
chaos: ## run the end-to-end tests at full size: 20 kills, 2,000 tasks, the services, 200 tenants
	go test ./tests/e2e ./tests/tenants -count=1 -timeout 8m -full -v

.PHONY: images
images: ## run the build steps of deploy/Dockerfile without a container engine
	go test ./deploy -run Images -count=1 -timeout 20m -build -v

.PHONY: notices
notices: build ## write a bill of materials and third-party notices of each program into bin/notices/
	go run ./internal/sbom -o bin/notices $(addprefix bin/,$(notdir $(wildcard cmd/servo*)))

.PHONY: simulate
simulate: ## run SEEDS (1000) simulated worlds from the seed FIRST, or the world in WORLD='{…}'
	go test ./tests/simulation -count 1 -timeout 0 -v -run 'TestWorldsKeep|Given' -seeds $(SEEDS) -first $(FIRST) -world '$(WORLD)'

.PHONY: simulate-large
simulate-large: ## run SEEDS (1000) simulated worlds with thousands of tasks, from the seed FIRST
	go test ./tests/simulation -count 1 -timeout 0 -v -run TestWorldsKeep -large -seeds $(SEEDS) -first $(FIRST)

.PHONY: deaths
deaths: ## simulate a tick many times; each time, a process dies at a different call
	go test ./tests/simulation -count 1 -timeout 0 -v -run TestI26TicksSurviveDeathAtAnyCall -stride 1

.PHONY: simulate-mutants
simulate-mutants: ## apply mutants one at a time, and check that the simulation catches them
	go run ./tests/simulation/mutants

.PHONY: race
race: ## run the tests of packages with goroutines under the race detector
	go test -race -short $(RACE)

.PHONY: vuln
vuln: ## check the dependencies against Go's vulnerability database, or the one at VULNDB=URL
	go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 $(if $(VULNDB),-db $(VULNDB)) ./...

.PHONY: fuzz
fuzz: ## fuzz every fuzz target for FUZZTIME each (30s)
	@scripts/fuzz $(FUZZTIME)

.PHONY: bench
bench: build ## run the benchmarks of PKG (./pkg/...) and servo-bench COUNT times (5), results into bench/ for benchstat
	@scripts/bench $(COUNT) $(PKG)

.PHONY: bench-partitions
bench-partitions: ## measure a domain with PARTITIONS (10000000) partitions: commits, memory, pages, staleness
	go test ./pkg/engine -count 1 -timeout 0 -v -run TestPartitionsAtScale -partitions $(or $(PARTITIONS),10000000)

.PHONY: soak-schedules
soak-schedules: servo ## let servo dev run SCHEDULES (100) minutely schedules for MINUTES (60), and account for every tick
	@scripts/soak-schedules $(or $(MINUTES),60) $(or $(SCHEDULES),100)

.PHONY: bench-peers
bench-peers: build ## measure Servo and other engines alternately, SAMPLES times (3), PEERS="river dbos" or all, into bench/
	@scripts/bench-peers $(SAMPLES) $(PEERS)

.PHONY: bench-models
bench-models: servo ## measure SQL projects in Servo, DuckDB alone, dbt, SQLMesh and Dagster, SAMPLES times (3), into bench/
	@scripts/bench-models $(SAMPLES)

.PHONY: test-extensions
test-extensions: ## test queries with real extensions of DuckDB, on Linux and amd64; installs them into .cache/extensions, once
	@scripts/test-extensions

.PHONY: check
check: $(STEPS) ## what CI runs: format, build, vet, lint, schema, web page, demos, API, test, worlds

.PHONY: fmt
fmt: $(GOLANGCI) ## format the code
	$(GOLANGCI) fmt

.PHONY: fmt-check
fmt-check: $(GOLANGCI) ## show what `make fmt` would change
	$(GOLANGCI) fmt --diff

.PHONY: vet
vet: ## run go vet
	go vet ./...

.PHONY: lint
lint: $(GOLANGCI) ## lint, with a linter that is installed into .cache on first use
	$(GOLANGCI) run

$(GOLANGCI):
	@echo "building golangci-lint $(GOLANGCI_VERSION) into .cache, once"
	GOBIN=$(CURDIR)/$(dir $@) GOFLAGS= go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

# The tools that generate code are locked in the module tools, and built on first use.
TOOLS := .cache/tools
PROTO_TOOLS := $(addprefix $(TOOLS)/,buf protoc-gen-go protoc-gen-connect-go protoc-gen-servo)
GENERATED := pkg/servov1 ui/src/api/types.ts docs/reference/api.md pkg/api/openapi.json

$(TOOLS)/%: tools/go.mod tools/go.sum $(wildcard tools/protoc-gen-servo/*.go)
	@echo "building $* into $(TOOLS)"
	@GOFLAGS=-trimpath go -C tools build -o ../$@ $(or $($(*)_PACKAGE),./$*)

buf_PACKAGE := github.com/bufbuild/buf/cmd/buf
protoc-gen-go_PACKAGE := google.golang.org/protobuf/cmd/protoc-gen-go
protoc-gen-connect-go_PACKAGE := connectrpc.com/connect/cmd/protoc-gen-connect-go

.PHONY: proto
proto: $(PROTO_TOOLS) ## generate Go, TypeScript, OpenAPI and the reference from proto/servo/v1
	cd proto && ../$(TOOLS)/buf format -w --path servo && ../$(TOOLS)/buf generate

.PHONY: proto-check
proto-check: $(PROTO_TOOLS) ## check proto/servo/v1: lint, compatible changes only, and generated files are current
	@scripts/proto-check $(TOOLS) $(GENERATED)

.PHONY: api-check
api-check: servo ## send requests derived from the OpenAPI document to servo dev, EXAMPLES (3) random ones to each call
	@scripts/api-check $(or $(EXAMPLES),3)

.PHONY: proto-baseline
proto-baseline: $(PROTO_TOOLS) ## accept the schema as the baseline for the compatibility of later changes
	cd proto && ../$(TOOLS)/buf build --exclude-source-info -o baseline.binpb

.PHONY: invariants
invariants: ## update the lists of tests in docs/invariants.md
	go test ./internal/arch -run TestEveryInvariant -rewrite

.PHONY: map
map: ## write the layers and packages into docs/architecture.md
	go test ./internal/arch -run TestArchitectureShowsMap -rewrite

.PHONY: zones
zones: ## check hours and ticks of every time zone from 1970 to 2037 (takes minutes)
	go test ./pkg/space -run TestHoursOfEveryZoneAreCountedOnce -every-zone -timeout 60m -v
	go test ./pkg/calendar -run TestTicksAreThoseOfMinuteWalk -every-zone -timeout 60m -v

.PHONY: zonedata
zonedata: ## copy the time zone data of the Go distribution in use to pkg/calendar
	go run ./internal/zonepack "$$(go env GOROOT)/lib/time" pkg/calendar/zones.tar.gz

.PHONY: reference
reference: ## generate the reference pages and the JSON Schema from the code
	go test ./pkg/project -run 'TestSchemaFileIsCurrent|TestReferenceIsCurrent' -rewrite

.PHONY: ui
ui: ui/node_modules/.package-lock.json ## build the web page into pkg/ui/dist (needs Node 20.19 or newer)
	cd ui && TZ=UTC npx --no-install vite build --logLevel warn
	go run ./internal/uipack ui/build pkg/ui/dist

ui/node_modules/.package-lock.json: ui/package.json ui/package-lock.json
	cd ui && npm ci --ignore-scripts --no-audit --no-fund

.PHONY: ui-check
ui-check: ## check the web page: its sources, its unit tests, and that pkg/ui/dist is their build
	@scripts/ui-check

.PHONY: ui-test
ui-test: servo ui/node_modules/.package-lock.json ## test the web page in Chromium (apt-get install chromium fonts-dejavu)
	node --test --test-concurrency=1 tests/ui/*.test.mjs

.PHONY: ui-shots
ui-shots: servo ui/node_modules/.package-lock.json ## write the pictures of the web page into docs/ui
	node tests/ui/shots.mjs

.PHONY: clean
clean: ## delete build results, and the state of the examples
	rm -rf bin .cache coverage.out ui/node_modules ui/build
	find examples -type d -name .servo -prune -exec rm -rf {} +

.PHONY: steps
steps:
	@echo $(STEPS)
