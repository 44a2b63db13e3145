# taskgate. `make help` lists what can be made; every target sets up what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NODE   := tests/node
# Stamps: what is in .venv.
RUNS   := $(VENV)/.runs
TESTS  := $(VENV)/.tests
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --constraint deploy/constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install run test test-quick check fuzz bench lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(TESTS)  ## make .venv with taskgate and all that its tests need

$(RUNS): pyproject.toml deploy/constraints.txt
	@echo "Once: installing taskgate, and only what it runs with, into $(VENV): 17 packages, about 10 MB."
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	@touch $@

$(TESTS): $(RUNS)
	@echo "Once: installing what the tests need into $(VENV): 90 more packages. On a slow line that takes minutes."
	$(PIP) --editable '.[dev]'
	@touch $@

run: $(RUNS)  ## taskgate in front of a small server, and what a filtered list costs (ONCE=1: then exit)
	@$(BIN)/taskgate demo $(if $(ONCE),--once)

# The order of sets is part of a history that is played. Many tests wait: four of them at once fill two cores.
PYTEST := PYTHONHASHSEED=0 $(BIN)/python -m pytest

test: $(TESTS) $(NODE)/node_modules/.installed  ## all tests, those against real servers included (ARGS="..." chooses)
	$(PYTEST) $(or $(ARGS),-q -n 4 --dist worksteal)

test-quick: $(TESTS)  ## the rules alone, without sockets and processes: under 30 seconds
	$(PYTEST) -q -n 2 tests/core tests/test_config.py tests/test_sessions.py tests/test_docs.py

# Without npm the tests that need Node say so: skipped by hand, failed in CI.
$(NODE)/node_modules/.installed: $(NODE)/package-lock.json
	@if command -v npm >/dev/null; then cd $(NODE) && npm ci --silent --no-audit --no-fund && touch node_modules/.installed; \
	else echo "npm is not installed: the tests against Node servers cannot run"; fi

check: $(TESTS)  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fuzz: $(TESTS)  ## 20,000 random histories against the promise of the design (ARGS="--histories N --seed N")
	$(BIN)/python -m tests.model $(ARGS)

bench: $(TESTS)  ## speed and memory, as ratios to peers measured in the same run
	$(BIN)/python -m tests.bench $(ARGS)

lock:  ## write deploy/constraints.txt anew from the ranges in pyproject.toml
	rm -rf $(VENV)/lock && $(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --quiet '.[dev]'
	( echo "# Exact versions for the ranges in pyproject.toml. Written by make lock."; \
	  $(VENV)/lock/bin/python -m pip freeze --exclude taskgate ) > deploy/constraints.txt
	rm -rf $(VENV)/lock

clean:  ## remove what was made
	rm -rf $(VENV) $(NODE)/node_modules build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
