# What you can do with a checkout of Heddle. `make` alone explains.

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

.PHONY: help setup demo image test drill bench fmt lint doc fuzz

help: ## Explain these commands
	@echo 'Heddle carves isolated virtual clusters out of one shared InfiniBand fabric. See README.md.'
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

setup: ## Install what is missing (Debian 12; every other command does it first)
	@scripts/setup.sh

demo: setup ## Two tenants, a virtual cluster of each, MPI and proof of isolation; writes target/demo/report.md
	@scripts/demo.sh

image: setup ## Build the image that virtual machines boot from (minutes, once; as root or with sudo)
	@scripts/image.sh

test: setup ## Everything that has to pass: format, lints, tests, documentation
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo nextest run --workspace
	cargo test --doc --workspace
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps

drill: setup ## Kill parts of a site while virtual clusters come and go, and more that boots virtual machines
	scripts/image.sh
	cargo build --workspace --bins --test virtual_cluster
	cargo nextest run --workspace --test virtual_cluster --ignore-default-filter --no-fail-fast --success-output final

bench: setup ## Measure on this machine, against ibsim and opensm too, and rewrite docs/benchmarks*.md
	@scripts/bench.sh

fmt: setup ## Format the code
	cargo fmt --all

lint: setup ## Run the lints
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

doc: setup ## Build the documentation of the code, target/doc/heddle/index.html
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps

fuzz: ## Feed every parser with random input for a short while (FUZZ_SECONDS=10)
	@scripts/setup.sh fuzz
	@mkdir -p fuzz/target
	@for target in $$(cargo fuzz list); do \
		echo "fuzz: $$target, $(FUZZ_SECONDS) s"; \
		cargo fuzz run --sanitizer none "$$target" -- -max_total_time=$(FUZZ_SECONDS) >fuzz/target/$$target.log 2>&1 || \
			{ tail -n 40 fuzz/target/$$target.log; exit 1; }; \
		tail -n 1 fuzz/target/$$target.log; \
	done
