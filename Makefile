# `make check` and `make test` are the gate, here and in CI.

.DEFAULT_GOAL := help
.PHONY: help build test check bench bench-large

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-11s %s\n", $$1, $$2 }'

build: ## build the release binary
	cargo build --release

test: ## run all tests, with the tools they need
	@if cargo nextest --version >/dev/null 2>&1; then \
		set -x; cargo nextest run; \
	else \
		set -x; cargo test --lib --bins --tests; \
	fi
	tests/tools/schemathesis.sh
	tests/tools/browser.sh

check: ## formatting, lints, documentation, licences
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --document-private-items
	@if cargo deny --version >/dev/null 2>&1; then \
		set -x; cargo deny check licenses bans sources; \
	else \
		echo "cargo deny: skipped, it is not installed (cargo install cargo-deny)"; \
	fi

bench: ## measure the engine and the status API
	cargo bench --bench engine

bench-large: ## measure the status API, starts and memory with a million tasks
	cargo bench --bench engine -- --large api memory start
