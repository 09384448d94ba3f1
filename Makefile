# Every target makes the environment it needs in .venv from Python >= 3.11 alone. Files in .venv/stamp remember
# what is installed, so that a second call installs nothing. Pass options on with ARGS="…".

PYTHON  ?= python3
WORKERS ?= 2
# Acceptance tests spend much of their time waiting for leases to end.
MORE_WORKERS ?= 3
ARGS    ?=

BIN   := .venv/bin
STAMP := .venv/stamp
# -qq keeps pip to its errors.
PIP    = $(BIN)/python -m pip -qq --disable-pip-version-check install
# A pin stays unless asked otherwise: make lock ARGS=--upgrade
COMPILE = $(BIN)/uv -q pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate $(ARGS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test acceptance retest browser check coverage chaos fuzz bench docs picture lock lock-is-portable clean
MAKEFLAGS += --no-print-directory
# Where a machine sets it, each of the thousand processes that tests start would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

run: $(STAMP)/project ## carry out a flow: examples/release.yaml (ARGS="-i version=2.0")
	@mkdir -p build
	@$(BIN)/keptwork run examples/release.yaml --yes --db sqlite:///build/keptwork.db $(ARGS)

test: $(STAMP)/dev ## run the quick tests, on both databases (ARGS="tests/store -k claim")
	@$(BIN)/pytest -q -n $(WORKERS) $(ARGS)

acceptance: $(STAMP)/dev ## run the tests that kill processes, race real clocks or try everything
	@$(BIN)/pytest -q -n $(MORE_WORKERS) -m "acceptance and not chaos" $(ARGS)

# Tests that race real processes against real clocks are lost, once in many runs, to a busy machine.
# A fault of the code fails again alone; more than three failures are no accident.
retest: $(STAMP)/dev ## run again, one by one, what failed in the last test run (three tests at most)
	@$(BIN)/python -c 'import json, sys; failed = json.load(open(".pytest_cache/v/cache/lastfailed")); \
		print("unsteady, now run alone:", *failed, sep="\n  "); sys.exit(not 0 < len(failed) <= 3)'
	@$(BIN)/pytest -q -n 0 -m "not chaos" --last-failed --last-failed-no-failures none $(ARGS)

browser: ## install Chromium, where it is not there and apt is: tests of the dashboard in a browser are skipped without it
	@command -v chromium > /dev/null || apt-get install -y -qq --no-install-recommends chromium

check: $(STAMP)/dev lock-is-portable ## format, lint, types, layers, generated docs, marks
	@echo "· format"   && $(BIN)/ruff format -q --check .
	@echo "· lint"     && $(BIN)/ruff check -q .
	@echo "· types"    && $(BIN)/mypy --no-error-summary $(wildcard src tests bench examples tools)
	@echo "· layers"   && $(BIN)/lint-imports > $(STAMP)/layers.log || { cat $(STAMP)/layers.log; exit 1; }
	@echo "· docs"     && $(BIN)/python -m tools.docs --check
	@echo "· marks"    && $(BIN)/python -m tools.marks && $(BIN)/python -m tools.prose

chaos: $(STAMP)/dev ## long runs of injected faults
	@$(BIN)/pytest -m chaos -n 0 -s $(ARGS)

coverage: $(STAMP)/dev ## count the lines of each room that neither test nor acceptance runs
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(BIN)/coverage run -m pytest -q -n $(WORKERS) -m "not chaos" $(ARGS)
	@$(BIN)/coverage combine -q && $(BIN)/python -m tools.uncovered

fuzz: $(STAMP)/dev ## 100,000 requests made from the OpenAPI document (ARGS="--requests 10000 --seed 7 --database sqlite")
	@$(BIN)/python -m tests.http.fuzz $(ARGS)

bench: $(STAMP)/dev ## measure
	@$(BIN)/python -m bench $(ARGS)

docs: $(STAMP)/dev ## write the generated pages
	@$(BIN)/python -m tools.docs $(ARGS)

picture: $(STAMP)/dev ## record docs/images/run.svg from a real run
	@$(BIN)/python -m tools.run_picture

lock: $(STAMP)/lock ## pin requirements/*.txt anew (ARGS=--upgrade takes newer versions)
	@$(COMPILE) requirements/lock.in -o requirements/lock.txt
	@$(COMPILE) pyproject.toml requirements/build.in -o requirements/run.txt
	@$(COMPILE) pyproject.toml --extra postgres --extra anthropic --extra openai --extra server --extra client --extra otel requirements/build.in requirements/dev.in \
		-c requirements/run.txt -o requirements/dev.txt
	@$(MAKE) lock-is-portable

# A lock file that names an address works on one network only.
lock-is-portable:
	@! grep -nE '://|--(extra-)?index|--find-links|^-e| @ ' requirements/*.txt

clean: ## remove the environment and all caches
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .bench dist build
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment, step by step; each stamp is newer than what it was made from.

$(STAMP)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "Keptwork needs Python 3.11 or newer as $(PYTHON); name another with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "$(PYTHON) lacks the venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "· making .venv"
	@$(PYTHON) -m venv --clear .venv
	@mkdir -p $(STAMP) && touch $@

$(STAMP)/run: requirements/run.txt $(STAMP)/venv
	@echo "· installing what Keptwork needs to run"
	@$(PIP) --require-hashes -r $<
	@touch $@

$(STAMP)/project: pyproject.toml $(STAMP)/run
	@$(PIP) --no-build-isolation --no-deps -e .
	@touch $@

$(STAMP)/dev: requirements/dev.txt $(STAMP)/project
	@echo "· installing what tests and checks need"
	@$(PIP) --require-hashes -r $<
	@touch $@

$(STAMP)/lock: requirements/lock.txt $(STAMP)/venv
	@$(PIP) --require-hashes -r $<
	@touch $@
