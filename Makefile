# Everything runs in .venv, which `make` builds with the versions of constraints.txt. `make help` lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
PROCESSES ?= 2

.PHONY: help serve test test-slow check lint types imports fmt bench install packages clean

help: ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

serve: $(STAMP) ## install, fetch the default model, serve it (ARGS="--port 9000 …")
	@exec $(BIN)/prefixgate serve $(ARGS)

test: $(STAMP) packages ## install, run the tests (ARGS="-k name")
	$(BIN)/python -m pytest -n $(PROCESSES) --no-loadscope-reorder $(ARGS)

test-slow: $(STAMP) packages ## the tests that take minutes
	$(BIN)/python -m pytest -m slow $(ARGS)

check: lint types imports test ## what CI runs

lint: $(STAMP) ## ruff, codespell, the image, and the project's own rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/hadolint Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec compose.yaml
	$(BIN)/python -m tests.house_rules

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

imports: $(STAMP) ## the arrows that must not exist
	$(BIN)/lint-imports

fmt: $(STAMP) ## format and fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## the benchmarks that need no peer
	$(BIN)/python -m benchmarks.prefixcache
	$(BIN)/python -m benchmarks.scheduling
	$(BIN)/python -m benchmarks.kernels
	$(BIN)/python -m benchmarks.ttft

install: $(STAMP) ## only the environment

# CPU-only torch: see "Torch" in README.md. pip skips what is installed already.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "Python 3.11 with venv is needed: set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "installing into $(VENV), about 2.7 GB; this takes minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[engine,postgres,dev]'
	@touch $@

# Debian packages that tests need. Without root their tests skip with a reason; with CI set they fail.
PACKAGES := chromium curl postgresql
packages:
	@if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  dpkg -s $(PACKAGES) >/dev/null 2>&1 || { export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && apt-get install -y -qq --no-install-recommends $(PACKAGES); }; \
	fi

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
