# Everything happens in .venv, which `make setup` keeps in step with pyproject.toml and constraints.txt.
# Needs Python 3.10 or later (the pinned versions are for 3.11), make and git.

PYTHON ?= python3
WORKERS ?= 2

BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
# Two cores and one torch thread per process: what every measurement and test here assumes.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint dev bench clean

help:  ## say what there is to make
	@sed -n 's/^\([a-z]*\):.*## \(.*\)$$/make \1|\2/p' Makefile | awk -F'|' '{ printf "  %-12s %s\n", $$1, $$2 }'

demo: setup  ## start a master, search hyperparameters over the digits model, use the best checkpoint
	@$(BIN)/python examples/digits/demo.py

test: setup  ## run the whole test suite
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

setup: .venv/.installed  ## make .venv and install everything development needs

check: lint  ## format, lint, types, layers and the fast tests: run it before every commit
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow" $(wildcard tests/unit tests/conformance)

lint: setup  ## the part of check that runs no test
	@$(BIN)/ruff format --check --quiet . || { echo "format: run '$(BIN)/ruff format .'"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

dev: setup  ## train the sample on two local processes, its run folder below ./runs
	@DET_RUNS_DIR="$${DET_RUNS_DIR:-runs}" $(BIN)/python -m determined.launch.torch_distributed --nproc 2 examples/digits/train.py

bench: .venv/.installed-bench  ## measure training and the platform beside our peers (about half an hour on a quiet machine)
	@$(BIN)/python -m bench

clean:  ## remove what the other targets made
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

.venv/.installed: pyproject.toml constraints.txt
	@echo "setup: installing into .venv, which takes a few minutes the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(INSTALL) --editable ".[dev]"
	@touch $@

.venv/.installed-bench: .venv/.installed
	@echo "setup: installing the libraries we are measured against"
	@$(INSTALL) --editable ".[bench]"
	@touch $@
