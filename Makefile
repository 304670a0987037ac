# Everything below sets up .venv by itself when it is missing or stale.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
KERNELS := $(patsubst %,src/penstock/records/%.py,reading writing hashing)

CASES ?= 20000
SEED  ?= 1
JOBS  ?= $(shell nproc)

.PHONY: setup tools run test lint bench crash fuzz kill9 sim demo clean spark-cluster spark-docs spark-restarts

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

# Foreign clients and servers that Debian packages. Without root the tests that need them say so and skip.
tools: $(STAMP)
	@command -v kcat >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq kcat >/dev/null; } \
	  || echo "kcat is not here and could not be installed: its tests are skipped"
	@command -v etcd >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq etcd-server >/dev/null; } \
	  || echo "etcd is not here and could not be installed: its tests are skipped"

test: lint tools
	$(BIN)/python -m pytest
	PENSTOCK_PURE=1 $(BIN)/python -m pytest tests/records

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	@for name in records wire log floor broker clients libraries scale; do \
	  echo "== $$name"; $(BIN)/python -m benchmarks.$$name --json || exit 1; done

# 20,000 seeded crashes of the partition log on the simulated disk.
crash: $(STAMP)
	$(BIN)/python -m penstock.sim.crash --cases $(CASES) --seed $(SEED) --jobs $(JOBS)

# A million damaged frames, and a hundred kills of a broker under load.
fuzz: $(STAMP)
	cd tests && ../$(BIN)/python -m broker.fuzzing --frames 1000000 --seed $(SEED)
	PENSTOCK_LONG=1 $(BIN)/python -m pytest tests/broker/test_fuzz.py --timeout 600

kill9: $(STAMP)
	cd tests && ../$(BIN)/python -m chaos.kill9 --rounds 100

# A standalone Spark master with two workers, executors killed amid reads and writes; Spark Connect.
spark-cluster: $(STAMP)
	PENSTOCK_LONG=1 $(BIN)/python -m pytest tests/spark/cluster --durations 10

# Every example of docs/SPARK.md on real Spark.
spark-docs: $(STAMP)
	$(BIN)/python -m pytest tests/spark/test_docs.py

# A checkpointed query stopped and killed twenty times at random points while a producer writes.
spark-restarts: $(STAMP)
	cd tests && ../$(BIN)/python -m spark.restarts --rounds 20 --seed $(SEED)

# All that runs on the simulator; today that is the log.
sim: crash

# Brokers, clicks, a pipeline on Spark that counts them, and its output: under a minute.
demo: $(STAMP)
	$(BIN)/python -m examples.demo

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/penstock/records/*.so src/penstock/records/*.c
