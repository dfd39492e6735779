# Everything runs in .venv, made on first use: by uv when it is there, else by venv and pip.
# PYTHON=python3.13 picks the interpreter; ARGS="-k name" goes to pytest, the demo or the benchmarks;
# JOBS=1 runs the slow tests one by one; N=10 is how often test-repeat runs, LOAD=2 how many busy
# processes share the machine with every second of its runs.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
# The tests with servers and workers wait most of their time, so several run at once; the files that
# take longest come first, so that none of them is left alone at the end.
JOBS ?= 8
# How long `make soak` and `make jepsen` cause faults and `make simulate` runs, and what they draw
# chance from.
SECONDS ?= 60
SEED ?= 1
N ?= 10
LOAD ?= 2

ifneq ($(UV),)
INSTALL = $(UV) pip install --quiet --python $(BIN)/python
else
# A Debian python3 without python3-venv makes a venv without pip: the outer pip fills it.
INSTALL = pip() { if $(BIN)/python -m pip --version >/dev/null 2>&1; \
	then $(BIN)/python -m pip "$$@"; else $(PYTHON) -m pip --python $(BIN)/python "$$@"; fi; }; \
	pip install --quiet --disable-pip-version-check
endif

# Thousands of processes of the tests would compile the package again and again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-repeat test-strikes test-oldest on-oldest test-docker soak jepsen nemesis \
	simulate mutants check model docs docs-serve bench bench-quick charts release format clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 13

venv: $(VENV)/.dev ## make .venv with everything for development

demo: $(VENV)/.demo ## watch several processes contend for one lock
	@$(BIN)/python -m examples.demo $(ARGS)

test: $(VENV)/.dev ## all tests, fast ones first
	@$(BIN)/python -m pytest -q -n 2 tests/unit $(ARGS)
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder \
		tests/docs tests/contract tests/acceptance tests/browser tests/real_server tests/model \
		tests/simulation $(ARGS)

test-repeat: $(VENV)/.dev ## all tests N times in a row; says which failed, and in which run
	@$(BIN)/python -m tests.support.repeat $(N) $(LOAD) $(MAKE) --no-print-directory test

test-strikes: $(VENV)/.dev ## kill -9 at every line of parking and of waking; half an hour
	@CELERY_LOCKS_ALL_STRIKES=1 $(BIN)/python -m pytest -s tests/real_server/test_parking_strikes.py $(ARGS)

test-oldest: ## the promises in short, on the oldest Celery, redis-py and Redis supported
	@$(MAKE) --no-print-directory VENV=.venv-oldest on-oldest

# The heart of the contract, on the oldest Redis too (its wheel puts it into bin), and workers. The
# oldest kombu leaves sockets to the garbage collector: that is not held against us.
on-oldest: $(VENV)/oldest
	@$(BIN)/redis-server --version
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -W ignore::ResourceWarning \
		-W ignore::pytest.PytestUnraisableExceptionWarning tests/unit/testing/test_in_memory.py \
		$(patsubst %,tests/contract/test_%.py,acquire lease queue takeover clients) \
		tests/unit/integration/test_execution_memory.py tests/acceptance/test_smoke.py \
		$(patsubst %,tests/acceptance/worker/test_%.py,in_memory_locks ways_to_lock) \
		-k "not cluster and not sentinel" $(ARGS)

test-docker: $(VENV)/.dev ## a worker in a container, on Redis and RabbitMQ; needs a Docker engine
	@$(BIN)/python -m pytest -c tests/docker/pytest.ini --rootdir=. tests/docker -rs $(ARGS)

soak: $(VENV)/.dev ## jobs under repeated kill -9, with locks and without; SECONDS=60 SEED=1
	@$(BIN)/python -m tests.soak --seconds $(SECONDS) --seed $(SEED) $(ARGS)

jepsen: $(VENV)/.dev ## three workloads for locks under faults, checked; SECONDS=60 SEED=1
	@$(BIN)/python -m tests.jepsen --seconds $(SECONDS) --seed $(SEED) $(ARGS)

nemesis: $(VENV)/.dev ## one fault at a time: which promises hold; ARGS="--only flushall --seed 1"
	@$(BIN)/python -m tests.nemesis $(ARGS)

simulate: $(VENV)/.dev ## many processes in virtual time over a faulty wire; SECONDS=3600 SEED=1
	@$(BIN)/python -m tests.simulation --seconds $(SECONDS) --seed $(SEED) $(ARGS)

mutants: $(VENV)/.dev ## mistakes in the scripts that no test notices; ARGS="--script release --sample 50"
	@$(BIN)/python -m tests.mutants $(ARGS)

check: $(VENV)/.dev ## format, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy celery_locks
	$(BIN)/python -m pytest -q tests/unit/package/test_architecture.py

model: $(VENV)/.model ## check the protocol in TLA+; needs Java, says so without; ARGS=--large: more
	@$(BIN)/python -m model $(ARGS)

# Always from nothing: the reference is made from the code, and an old page must not survive.
docs: $(VENV)/.dev ## build the documentation into docs/_build/html; a warning is an error
	@rm -rf docs/_build
	@$(BIN)/python -m sphinx -W --keep-going -n -q -d docs/_build/doctrees docs docs/_build/html
	@echo "docs/_build/html/index.html is ready"

docs-serve: docs ## build the documentation and serve it on http://localhost:8000
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory docs/_build/html 8000

bench: $(VENV)/.bench ## measure against the floor and the peers; 25 minutes on a quiet machine
	@$(BIN)/python -m benchmarks $(ARGS)

bench-quick: $(VENV)/.bench ## the same tables in two minutes, with few rounds; writes nothing
	@$(BIN)/python -m benchmarks --quick $(ARGS)

charts: $(VENV)/.dev ## draw the charts of the documentation from benchmarks/results
	@$(BIN)/python -m benchmarks.charts

# VERSION counts only on the command line: one that is left in the environment releases nothing.
release: $(VENV)/.release ## build, check and try the distribution; VERSION=0.1.0 ends the changelog
	@$(BIN)/python -m tools.release $(if $(filter command,$(origin VERSION)),$(VERSION))

format: $(VENV)/.dev ## let ruff format and fix what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove .venv, caches and build results
	rm -rf $(VENV) .venv-* .repeat build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "celery-locks needs Python 3.11 or newer; name one with PYTHON=..." >&2; exit 1; }
ifneq ($(UV),)
	@$(UV) venv --quiet --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV)
else
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || $(PYTHON) -m venv --clear --without-pip $(VENV)
endif

# One hidden stamp per set of extras, older than pyproject.toml means: install again.
$(VENV)/.%: pyproject.toml | $(BIN)/python
	@echo "installing celery-locks[$*] into $(VENV) ..."
	@$(INSTALL) -e '.[$*]'
	@touch $@

$(VENV)/oldest: tests/oldest.txt pyproject.toml | $(BIN)/python
	@echo "installing the oldest versions into $(VENV) ..."
	@$(INSTALL) -r tests/oldest.txt -e .
	@touch $@
