# taskgate. `make help` lists what can be made; every target sets up what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NODE   := tests/node
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install run test check fuzz bench lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## make .venv with taskgate and all that its tests need

$(STAMP): pyproject.toml deploy/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint deploy/constraints.txt --editable '.[dev]'
	@touch $@

run: $(STAMP)  ## the gateway before an embedded legacy server, a filtered list shown (ONCE=1: then exit)
	@$(BIN)/python -m gateway.demo $(if $(ONCE),--once)

test: $(STAMP) $(NODE)/node_modules/.installed  ## all tests, those against real servers included
	PYTHONHASHSEED=0 $(BIN)/python -m pytest $(ARGS)  # the order of sets is part of a history that is played

# Without npm the tests that need Node say so: skipped by hand, failed in CI.
$(NODE)/node_modules/.installed: $(NODE)/package-lock.json
	@if command -v npm >/dev/null; then cd $(NODE) && npm ci --silent --no-audit --no-fund && touch node_modules/.installed; \
	else echo "npm is not installed: the tests against Node servers cannot run"; fi

check: $(STAMP)  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fuzz: $(STAMP)  ## 20,000 random histories against the promise of the design (ARGS="--histories N --seed N")
	$(BIN)/python -m tests.model $(ARGS)

bench: $(STAMP)  ## speed and memory, as ratios to peers measured in the same run
	$(BIN)/python -m tests.bench $(ARGS)

lock:  ## write deploy/constraints.txt anew from the ranges in pyproject.toml
	rm -rf $(VENV)/lock && $(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --quiet '.[dev]'
	( echo "# Exact versions for the ranges in pyproject.toml. Written by make lock."; \
	  $(VENV)/lock/bin/python -m pip freeze --exclude taskgate ) > deploy/constraints.txt
	rm -rf $(VENV)/lock

clean:  ## remove what was made
	rm -rf $(VENV) $(NODE)/node_modules build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
