# Every command sets up what it needs. TORCH chooses the torch that `setup` takes, and is remembered:
#   pinned    (default) the version in constraints.txt from the configured package index
#   cpu       that version, in its CPU build where the index offers one
#   existing  the machine's own torch and triton, as they are

PYTHON ?= python3
TORCH ?= $(or $(shell cat .venv/torch-choice 2>/dev/null),pinned)
PYTEST_ARGS ?=
EVIDENCE_ARGS ?=

BIN := .venv/bin
STAMP := .venv/.setup-$(TORCH)

.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types verify sanitize clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv/ with day0 and all that it and its tests need (TORCH=pinned|cpu|existing)

$(STAMP): pyproject.toml constraints.txt .ci/setup
	@.ci/setup $(PYTHON) $(TORCH)
	@touch $@

demo: setup ## run the whole line on the bundled demo model (workspace: ./demo.day0)
	@$(BIN)/day0 run demo

test: setup ## run the tests (PYTEST_ARGS adds arguments)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not verify" $(PYTEST_ARGS)

lint: setup ## check style and formatting
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: setup ## check types
	@$(BIN)/mypy

verify: setup ## run what takes long, and write docs/evidence/ (EVIDENCE_ARGS=--all: also what is not stale)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -v -m verify $(PYTEST_ARGS)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.evidence.coverage $(EVIDENCE_ARGS)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutation $(EVIDENCE_ARGS)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.families $(EVIDENCE_ARGS)

sanitize: setup ## compute-sanitizer's memcheck over an edge case of every kernel (needs an NVIDIA GPU)
	@$(BIN)/python -m tests.kernels.sanitize

clean: ## remove .venv/, caches and build output
	rm -rf .venv .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist demo.day0 *.egg-info .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
