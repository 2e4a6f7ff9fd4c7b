.DEFAULT_GOAL := help
.PHONY: help setup run test test-slow test-network browser lint format docs docs-check clean

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

test: $(READY) browser ## run the tests that need neither network nor long times
	$(PYTEST) -n 2 -m 'not slow and not network'

test-slow: $(READY) ## run the long tests
	$(PYTEST) -m 'slow and not network'

test-network: $(READY) ## run the tests that download weights from a model hub
	$(PYTEST) -m network

browser: ## install Debian's Chromium for the tests of pages, where apt may be used without asking
	@sh scripts/browser.sh

lint: $(READY) ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## rewrite style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## build the documentation into docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html
	@echo "docs/_build/html/index.html"

docs-check: docs ## build the documentation, and run what it, the README and the docstrings show
	$(PYTEST) -n 0 --doctest-modules bcs_lab --ignore=bcs_lab/assets
	$(PYTEST) -n 0 tests/test_docs.py

clean: ## remove the environment, caches and build products; runs/ stays
	rm -rf $(VENV) build docs/_build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
