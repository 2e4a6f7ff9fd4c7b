.DEFAULT_GOAL := help
.PHONY: help setup run test test-slow test-network lint format docs-check clean

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

help: ## show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(READY) ## make the virtual environment and install everything, versions as in constraints.txt

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: $(READY) ## train the default BCS on the embedded real pairs and print its table
	$(BIN)/python train.py

test: $(READY) ## run the tests that need neither network nor long times
	$(PYTEST) -n 2 -m 'not slow and not network'

test-slow: $(READY) ## run the long tests
	$(PYTEST) -m 'slow and not network'

test-network: $(READY) ## run the tests that download weights from a model hub
	$(PYTEST) -m network

lint: $(READY) ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## rewrite style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs-check: $(READY) ## run the examples in docstrings, and check that README commands, links and configs exist
	$(PYTEST) -n 0 --doctest-modules bcs_lab --ignore=bcs_lab/assets
	$(PYTEST) -n 0 tests/test_docs.py

clean: ## remove the environment, caches and build products; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
