# `make test` is the gate, here and in CI.

.DEFAULT_GOAL := help
.PHONY: help build test suite tests tools lint check bench bench-large fuzz screenshots screenshots-dashboard

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'

build: ## build the release binary
	cargo build --release

# The lints run beside the tests, with what those leave of the processor, and tools are installed while the tests are
# compiled.
test: ## formatting, lints, documentation and all tests, with the tools they need
	$(MAKE) --jobs=3 lint suite

suite: tests tools
	@if cargo nextest --version >/dev/null 2>&1; then \
		set -x; cargo nextest run; \
	else \
		set -x; cargo test --lib --bins --tests; \
	fi
	tests/tools/plugin.sh
	tests/tools/mcp.sh
	tests/tools/conformance.sh
	tests/tools/schemathesis.sh
	tests/tools/browser.sh
	tests/tools/dashboard.sh

tests:
	@if cargo nextest --version >/dev/null 2>&1; then \
		set -x; cargo nextest run --no-run; \
	else \
		set -x; cargo test --lib --bins --tests --no-run; \
	fi

tools:
	tests/tools/install-opencode.sh
	tests/tools/install-clients.sh
	tests/tools/install-tmux.sh
	tests/tools/install-bubblewrap.sh
	tests/tools/install-mcp.sh
	tests/tools/install-chromium.sh

# In a directory of its own, because cargo locks the one it builds in; the dashboard has its own checks.
lint: export CARGO_TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)/lint
lint: export ASYNCAGENTS_SKIP_DASHBOARD := 1
lint:
	cargo fmt --check
	nice -n 19 cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" nice -n 19 cargo doc --no-deps --document-private-items

check: lint ## formatting, lints, documentation, licences
	@if cargo deny --version >/dev/null 2>&1; then \
		set -x; cargo deny check licenses bans sources; \
	else \
		echo "cargo deny: skipped, it is not installed (cargo install cargo-deny)"; \
	fi

bench: ## measure the engine, the status API, forking and the dashboard
	-tests/tools/install-mcp.sh
	cargo bench --bench engine
	cargo bench --bench fork
	tests/tools/bench-dashboard.sh

bench-large: ## the same with a million tasks and a parent of 239 MB
	cargo bench --bench engine -- --large api memory start
	cargo bench --bench fork -- --large

screenshots: screenshots-dashboard ## take the pictures of the README again, from the built program
	tests/tools/screenshots.sh

screenshots-dashboard:
	tests/tools/screenshots-dashboard.sh

# Seconds for each target.
FUZZ_SECONDS ?= 600

# Without sanitizers, because there is no unsafe code: this way it tries twice as much.
fuzz: ## fuzz what reads other people's bytes (needs cargo-fuzz and a nightly compiler)
	cargo +nightly fuzz run --sanitizer none fork_read -- -max_total_time=$(FUZZ_SECONDS) -max_len=65536
	cargo +nightly fuzz run --sanitizer none fork_pipeline -- -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -len_control=0
