# Everything below sets up .venv by itself when it is missing or stale.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
KERNELS := src/penstock/records/reading.py src/penstock/records/writing.py

CASES ?= 20000
SEED  ?= 1
JOBS  ?= $(shell nproc)

.PHONY: setup run test lint bench crash sim demo clean

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py constraints.txt $(KERNELS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "penstock needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) 2>/dev/null \
	  || { rm -rf $(VENV); echo "Python has no venv here: installing Debian's python3-venv" >&2; \
	       apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@$(BIN)/python -c 'from penstock.records import kernels as k; print("kernels:", "compiled" if k.COMPILED else "plain Python (slower): install gcc and the Python headers, then make clean setup")'
	@touch $@

run: $(STAMP)
	$(BIN)/penstock up

test: lint
	$(BIN)/python -m pytest
	PENSTOCK_PURE=1 $(BIN)/python -m pytest tests/records

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	@for file in records wire log; do echo "== benchmarks/$$file.py"; $(BIN)/python benchmarks/$$file.py --json || exit 1; done

# 20,000 seeded crashes of the partition log on the simulated disk.
crash: $(STAMP)
	$(BIN)/python -m penstock.sim.crash --cases $(CASES) --seed $(SEED) --jobs $(JOBS)

sim: crash

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/penstock/records/*.so src/penstock/records/*.c
