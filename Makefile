# Commands of a checkout of Heddle. `make` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# cargo puts what it installs there, and not every shell looks there.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

# Property tests draw the same cases in every `make test`, so that a change that passed once passes again. Others:
# `make test PROPTEST_RNG_SEED=7`, or `cargo nextest run`, which draws new ones each time.
export PROPTEST_RNG_SEED ?= 18

# Seconds for each fuzz target of `make fuzz`.
FUZZ_SECONDS ?= 10

.PHONY: help setup demo image image-evaluation test drill bench fmt lint doc fuzz audit debug-kernel

help: ## List these commands
	@echo 'Heddle carves isolated virtual clusters out of one shared InfiniBand fabric. README.md has a tour.'
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 26

setup: ## Install missing packages and tools (Debian 12; every other command runs it first)
	@scripts/setup.sh

demo: setup ## Run two tenants with a virtual cluster each, MPI and a check of isolation; writes target/demo/report.md
	@scripts/demo.sh

image: setup ## Build the image that virtual machines boot from (takes minutes, once; as root or with sudo)
	@scripts/image.sh

image-evaluation: setup ## Build the same image with tools that measure, which `heddle cluster check` runs
	@scripts/image.sh evaluation

test: setup ## Run all checks: format, lints, tests, documentation
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo nextest run --workspace
	cargo test --doc --workspace
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps

drill: setup ## Run the tests that boot virtual machines, such as killing programs of a site while clusters come and go
	scripts/image.sh
	cargo build --workspace --bins --test virtual_cluster --test adapter_faults
	cargo nextest run --workspace --test virtual_cluster --test adapter_faults --ignore-default-filter --no-fail-fast --success-output final

bench: setup ## Measure on this machine, next to ibsim and opensm, and rewrite docs/benchmarks*.md
	@scripts/bench.sh

fmt: setup ## Format the code
	cargo fmt --all

lint: setup ## Run the lints
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

doc: setup ## Build the documentation of the code, target/doc/heddle/index.html
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps

fuzz: ## Fuzz every parser for a short while (FUZZ_SECONDS=10)
	@scripts/setup.sh fuzz
	@mkdir -p fuzz/target
	@for target in $$(cargo fuzz list); do \
		echo "fuzz: $$target, $(FUZZ_SECONDS) s"; \
		cargo fuzz run --sanitizer none "$$target" -- -max_total_time=$(FUZZ_SECONDS) >fuzz/target/$$target.log 2>&1 || \
			{ tail -n 40 fuzz/target/$$target.log; exit 1; }; \
		tail -n 1 fuzz/target/$$target.log; \
	done

audit: ## Check licences, sources and known vulnerabilities of dependencies (fetches the RustSec database)
	@scripts/setup.sh audit
	cargo deny check

debug-kernel: ## Build a kernel with KASAN and lockdep for guest-module/test (takes 10 minutes or more, once)
	@scripts/setup.sh debug-kernel
	@scripts/debug-kernel.sh
