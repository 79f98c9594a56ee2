# The only recipes that people and CI use. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
export CARGO_TERM_PROGRESS_WHEN ?= auto

# Every flag is also a variable PLIMSOLL_…: those of the shell must not reach the programs under test.
WITHOUT_FLAGS = env $$(env | sed -n 's/^\(PLIMSOLL_[A-Z0-9_]*\)=.*/--unset=\1/p')

# Most tests wait more than they compute, so that more of them run at once than there are processors.
TEST_THREADS = $${RUST_TEST_THREADS:-$$(( $$(nproc) > 8 ? $$(nproc) : 8 ))}

.PHONY: help
help: ## This list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: toolchain
toolchain:
	@scripts/require-rust.sh

.PHONY: test
test: toolchain ## Unit, property and integration tests of all crates: Rust only, no root, no Go, no cluster
	$(CARGO) build --locked --package plimsoll-nvml-standin
	RUST_TEST_THREADS=$(TEST_THREADS) $(WITHOUT_FLAGS) $(CARGO) test --locked --workspace

.PHONY: oracle
oracle: toolchain ## The exporter's windows and the annotator's queries against a real Prometheus, every page of metrics and every alert under promtool (installs Debian's package when missing)
	@scripts/require-prometheus.sh
	$(CARGO) test --locked --workspace --test oracle -- --ignored --nocapture
	$(CARGO) test --locked --workspace --test it -- --ignored promtool real_prometheus

# What the demo starts as processes of their own, and what shows them.
DEMO := plimsoll-nvml-standin scheduler-extender annotator node-exporter-plus gpushare-device-plugin plimsoll-demo

.PHONY: chart
chart: toolchain ## What the chart renders by its values, by Helm 3 and Helm 4 (Go 1.26; builds them and kustomize when missing)
	@scripts/chart.sh

.PHONY: demo
demo: toolchain ## See it work, on this machine alone: ONCE=1 ends by itself, SABOTAGE=gpu|hot|ledger
	@[ -x "$${CARGO_TARGET_DIR:-target}/debug/plimsoll-demo" ] || printf '%s\n' \
	    'The first time, cargo builds the four programs and the demo with about 280 crates: some minutes.' \
	    'Then the demo starts by itself: a minute of scenes, and pods that come and go until Ctrl-C.'
	$(CARGO) build --locked $(addprefix --package ,$(DEMO))
	@exec "$${CARGO_TARGET_DIR:-target}/debug/plimsoll-demo"

.PHONY: lint
lint: toolchain ## Formatting, width of comments, the size and shape of the sources, clippy, rustdoc, dependency policy (installs cargo-deny when missing)
	$(CARGO) fmt --all --check
	scripts/check-comment-width.sh
	scripts/size.sh --check
	scripts/shape.sh --check
	$(CARGO) clippy --locked --workspace --all-targets -- --deny warnings
	$(CARGO) clippy --locked --package plimsoll-e2e --test e2e -- --deny warnings
	RUSTDOCFLAGS="$${RUSTDOCFLAGS:-} --deny warnings" \
	    $(CARGO) doc --locked --workspace --no-deps --document-private-items
	@scripts/require-cargo-deny.sh
	$(CARGO) deny --log-level error check licenses bans sources

.PHONY: advisories
advisories: ## Known vulnerabilities among the dependencies; fetches the list of them (installs cargo-deny when missing)
	@scripts/require-cargo-deny.sh
	$(CARGO) deny --log-level warn check advisories

.PHONY: each-crate
each-crate: toolchain ## Each crate checked by itself, without the features that others turn on
	@scripts/each-crate.sh

.PHONY: coverage
coverage: toolchain ## Which part of each file the tests run (installs cargo-llvm-cov when missing)
	@scripts/coverage.sh

.PHONY: reference
reference: toolchain ## Writes anew what the code gives: JSON schemas, the documents' tables of flags, fields and metrics, the pictures of both RESULTS.md; and what the chart renders (Go 1.26; builds Helm when missing)
	PLIMSOLL_REGENERATE=1 $(CARGO) test --locked --package plimsoll-api --test it schema
	PLIMSOLL_REGENERATE=1 $(CARGO) test --locked --package plimsoll-deploy --test it reference
	@scripts/manifests.sh

.PHONY: ui
ui: ## The extender's page in a real Chromium (Node 20; as root on Debian it installs Chromium when missing)
	@testing/ui/run

.PHONY: site
site: toolchain ## The documents as a site, target/site, its links checked (installs mdBook into target/ when missing)
	@scripts/site.sh

.PHONY: bench
bench: toolchain ## What a call of the extender costs, what grows with the nodes, and the codecs: writes the tables of bench/RESULTS.md and bench/codecs.md anew
	figures=$$(mktemp) && trap 'rm -f "$$figures"' EXIT && \
	    $(CARGO) bench --locked --package plimsoll-bench --bench extender_http -- --json "$$figures" && \
	    $(CARGO) bench --locked --package plimsoll-bench --bench placement --bench view --bench verbs --bench codecs -- --quick && \
	    $(CARGO) run --locked --quiet --package plimsoll-bench --bin results -- --calls "$$figures" \
	        --criterion "$${CARGO_TARGET_DIR:-target}/criterion" \
	        --when "$$(date -u +%F), $$(git rev-parse --short HEAD), $$(nproc) processors"
	PLIMSOLL_REGENERATE=1 $(CARGO) test --locked --package plimsoll-deploy --test it pictures

.PHONY: bench-all
bench-all: toolchain ## Every benchmark of criterion and over HTTP, printed
	$(CARGO) bench --locked --package plimsoll-bench

.PHONY: closed-loop
closed-loop: toolchain ## Placement policies compared in a simulated cluster; ARGS="--tuning --cells S40", see lab/closed-loop
	$(CARGO) run --locked --release --package plimsoll-closed-loop -- $(ARGS)

.PHONY: openb
openb: toolchain ## Policies of GPU placement on a production trace; ARGS="--departures", see lab/openb
	$(CARGO) run --locked --release --package plimsoll-lab --bin openb -- $(ARGS)

.PHONY: rounds
rounds: toolchain ## What a round of the annotator over 5,000 exporters with TLS costs; ARGS="--steady"
	$(CARGO) build --locked --release --package annotator
	$(CARGO) run --locked --release --package plimsoll-lab --example rounds -- --nodes 5000 --period 15s --tls $(ARGS)

# The sizes of clusters that are measured, in nodes. Two processors take some 25 minutes for these.
SIZES ?= 100,1000,5000,15000

.PHONY: slopes
slopes: toolchain ## What grows with the number of nodes, and by how much: writes the tables of docs/scale.md anew; SIZES=100,1000
	figures=$$(mktemp -d) && trap 'rm -rf "$$figures"' EXIT && \
	    $(CARGO) build --locked --release --package annotator && \
	    $(CARGO) bench --locked --package plimsoll-bench --bench view -- --quick && \
	    $(CARGO) bench --locked --package plimsoll-bench --bench extender_http -- \
	        --nodes $(SIZES) --gpu --rounds 2 --slopes "$$figures/extender" && \
	    $(CARGO) run --locked --release --package plimsoll-lab --example rounds -- \
	        --annotator "$${CARGO_TARGET_DIR:-target}/release/annotator" \
	        --sizes $(SIZES) --period 15s --rounds 4 --tls --slopes "$$figures/annotator" && \
	    $(CARGO) run --locked --quiet --package plimsoll-bench --bin slopes -- "$$figures/extender" "$$figures/annotator" \
	        --criterion "$${CARGO_TARGET_DIR:-target}/criterion" \
	        --when "$$(date -u +%F), $$(git rev-parse --short HEAD), $$(nproc) processors"

.PHONY: fuzz
fuzz: toolchain ## Every fuzz target for SECONDS_EACH seconds (installs cargo-fuzz when missing)
	@scripts/fuzz.sh

.PHONY: images
images: toolchain ## The four images, built and tried: ARCHES="amd64 arm64", REGISTRY=HOST/PATH pushes them (needs buildah)
	@scripts/images.sh build

.PHONY: images-push
images-push: ## Pushes the images of target/images to REGISTRY=HOST/PATH, and prints their digests (needs skopeo)
	@scripts/images.sh push

.PHONY: images-check
images-check: toolchain ## The images packed twice, and plimsoll compiled in two folders, give the same bytes (after make images)
	@scripts/images.sh check
	@scripts/same-program.sh

.PHONY: release-try
release-try: toolchain ## A release into a registry on this machine: pushed, pulled by digest, verified (after make images; docker-registry, cosign)
	@scripts/release-try.sh

# The release of Kubernetes (a folder of testing/e2e/go/releases, oldest or newest), all tests or smoke, and how Plimsoll's
# programs are compiled: dev, test (as `make test` has compiled them) or release.
export KUBERNETES E2E_SET E2E_PROFILE

.PHONY: cluster
cluster: toolchain ## A real two-node Kubernetes on this host with Plimsoll installed (root, Linux); KUBERNETES=v1.X.Y, CHART=1
	$(CARGO) run --locked --package plimsoll-e2e --bin plimsoll-cluster -- up --install$(if $(CHART),=chart)

.PHONY: cluster-down
cluster-down: ## Removes that cluster and everything it left
	$(CARGO) run --locked --package plimsoll-e2e --bin plimsoll-cluster -- down

.PHONY: e2e
e2e: toolchain ## Tests on that cluster: what the containers' processes really see; KUBERNETES=v1.X.Y, E2E_SET=smoke
	E2E_PROFILE="$${E2E_PROFILE:-test}" $(CARGO) test --locked --workspace --test e2e

# Plimsoll's programs as released, but for the stand-ins' run; `test` has what `make test` compiled.
.PHONY: card
card: toolchain ## A node of a real Kubernetes on this machine's GPU, and what is asked of it (root); FAKE=1 without a GPU, BUNDLE=FOLDER packs it
	$(CARGO) build --locked --package plimsoll-card
	@E2E_PROFILE="$${E2E_PROFILE:-$(if $(FAKE),dev,release)}"; export E2E_PROFILE; \
	    card="$${CARGO_TARGET_DIR:-target}/debug/plimsoll-card"; \
	    $(if $(BUNDLE),exec "$$card" bundle "$(BUNDLE)",$(if $(FAKE),exec "$$card" run --fake --limit 600,figures=$$(mktemp) code=0; \
	    "$$card" run --json "$$figures" || code=$$?; [ ! -s "$$figures" ] || "$$card" record "$$figures"; exit "$$code"))

.PHONY: e2e-all
e2e-all: toolchain ## Every test on the newest release, the smoke set on the others, with the programs as released: hours
	@scripts/e2e-all.sh

.PHONY: flaky
flaky: toolchain ## The smoke set N times beside stress-ng, and what failed; N=20, E2E_SET=all, TEST=TEXT for some
	@scripts/flaky.sh

.PHONY: chaos
chaos: toolchain ## 2,000 pods on that cluster while every program is killed at random points; CHAOS_SEED, CHAOS_PODS
	CHAOS_PODS="$${CHAOS_PODS:-2000}" CHAOS_SEED="$${CHAOS_SEED:-$$(date +%s)}" E2E_PROFILE="$${E2E_PROFILE:-test}" \
	    $(CARGO) test --locked --workspace --test e2e -- in_a_chaos
