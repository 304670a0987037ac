# Everything below sets up .venv by itself when it is missing or stale.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
RUNS   := $(VENV)/.runs

# Another program, such as an automatic update, may hold the lock of the packages for a while.
APT_WAITS := -o DPkg::Lock::Timeout=300
SOURCES := pyproject.toml setup.py constraints.txt \
  $(patsubst %,src/penstock/records/%,reading.py checking.py checking.pxd progress.pxd ordinary_batch.py \
  writing.py hashing.py gc_tracking.py collector.pxd)

CASES ?= 20000
SEED  ?= 1
SEEDS ?= 0..2000
CUTS  ?= 100
JOBS  ?= $(shell nproc)

# The tests start thousands of processes, and each would compile every module again: half of its start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup tools run test starve messages docs lint bench crash fuzz kill9 chaos chaos-queues chaos-redelivery chaos-pipelines quotas txn-matrix sim sim-bugs power-cuts sim-results demo clean spark-cluster spark-docs spark-exactly-once spark-long spark-restarts

setup: $(STAMP)

# The package alone, which is all that a broker needs, or with all that tests and tools need.
$(RUNS): $(SOURCES)
	@$(VENV_HERE)
	$(INSTALL) -e .
	@$(SAY_KERNELS)
	@touch $@

$(STAMP): $(SOURCES)
	@$(VENV_HERE)
	$(INSTALL) -e ".[dev]"
	@$(SAY_KERNELS)
	@touch $(RUNS) $@

define VENV_HERE
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || { echo "penstock needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }; \
test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) 2>/dev/null \
  || { rm -rf $(VENV); echo "Python has no venv here: installing Debian's python3-venv" >&2; \
       apt-get update -qq && apt-get $(APT_WAITS) install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); }
endef
INSTALL = $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
SAY_KERNELS = $(BIN)/python -c 'from penstock.records import kernels as k; print("kernels:", "compiled" if k.COMPILED else "plain Python (slower): install gcc and the Python headers, then make clean setup")'

run: $(RUNS)
	$(BIN)/penstock up

# Foreign clients and servers that Debian packages. Without root the tests that need them say so and skip.
tools: $(STAMP)
	@command -v kcat >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get $(APT_WAITS) install -y -qq kcat >/dev/null; } \
	  || echo "kcat is not here and could not be installed: its tests are skipped"
	@command -v etcd >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get $(APT_WAITS) install -y -qq etcd-server >/dev/null; } \
	  || echo "etcd is not here and could not be installed: its tests are skipped"
	@test -e /usr/share/java/zookeeper.jar || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get $(APT_WAITS) install -y -qq --no-install-recommends zookeeper >/dev/null; } \
	  || echo "ZooKeeper is not here and could not be installed: its tests are skipped"
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get $(APT_WAITS) install -y -qq --no-install-recommends chromium >/dev/null; } \
	  || echo "chromium is not here and could not be installed: the console's browser tests are skipped"
	@test -x .tools/moto/bin/moto_server || { $(PYTHON) -m venv .tools/moto \
	  && .tools/moto/bin/python -m pip install -q --disable-pip-version-check -r tests/tier/moto-requirements.txt; } \
	  || echo "moto could not be installed: the tests of object stores run without it"
	@test -x /usr/lib/rabbitmq/bin/rabbitmq-server || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get $(APT_WAITS) install -y -qq --no-install-recommends rabbitmq-server >/dev/null; } \
	  || echo "rabbitmq-server is not here and could not be installed: the comparison of Celery on both is skipped"
	@command -v promtool >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get $(APT_WAITS) install -y -qq --no-install-recommends prometheus >/dev/null; } \
	  || echo "promtool is not here and could not be installed: the check of the alert rules with it is skipped"

# Many tests wait more than they compute, so there are more processes than the machine has processors.
WORKERS ?= 3
test: lint tools
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --max-worker-restart 0
	PENSTOCK_PURE=1 $(BIN)/python -m pytest tests/records

# The same tests beside eight busy loops, as on a machine that others use: each test that fails is named.
# `make starve LOOPS=0 CPUS=0.5` gives them half a processor instead, and leaves you the rest (needs root).
# `make starve LOOPS=0 PAUSES=1` stops all processes of the tests at random for up to a second (needs root).
# `make starve LATE=1` also delays the work that brokers do after they answer, such as markers.
LOOPS ?= 8
CPUS  ?=
LATE  ?=
PAUSES ?=
TESTS ?= tests
starve: tools
	cd tests && ../$(BIN)/python -m starve --loops $(LOOPS) $(if $(CPUS),--cpus $(CPUS)) $(if $(PAUSES),--pauses $(PAUSES)) $(if $(LATE),--late) $(TESTS)

# Every text of the product that people see, to be read: `make messages FOLDERS=broker`.
FOLDERS ?=
messages: $(STAMP)
	@cd tests && ../$(BIN)/python -m messages $(FOLDERS)

# The documentation as a site in build/site, with the reference of the clients. Warnings are errors.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	@for name in records wire log floor broker clients libraries transactions scale metrics access hostile; do \
	  echo "== $$name"; $(BIN)/python -m benchmarks.$$name --json || exit 1; done

# Do quotas hold within 10 % over 30 s, for confluent-kafka and Java? Four minutes on a quiet machine.
quotas: $(STAMP)
	@classes=$$(mktemp -d) && trap 'rm -rf $$classes' EXIT \
	  && java=$$(cd tests && ../$(BIN)/python -m compat.java_build $$classes Limited) \
	  && $(BIN)/python -m benchmarks.quotas --held --java "$$java" --json

# 20,000 seeded crashes of the partition log on the simulated disk.
crash: $(STAMP)
	$(BIN)/python -m penstock.sim.crash.runner --cases $(CASES) --seed $(SEED) --jobs $(JOBS)

# A million damaged frames, and a hundred kills of a broker under load.
fuzz: $(STAMP)
	cd tests && ../$(BIN)/python -m broker.fuzzing --frames 1000000 --seed $(SEED)
	cd tests && ../$(BIN)/python -m broker.listeners.login_fuzzing --frames 1000000 --seed $(SEED)
	PENSTOCK_LONG=1 $(BIN)/python -m pytest tests/broker/test_fuzz.py --timeout 600

kill9: $(STAMP)
	cd tests && ../$(BIN)/python -m chaos.kill9 --rounds 100

# Clusters of real processes: 200 kill -9 over the matrix, freezes, cut wires, full disks, growth.
KILLS ?= 200
chaos: tools
	cd tests && ../$(BIN)/python -m chaos.matrix --kills $(KILLS) --seed $(SEED)

# A queue on three brokers: KILLS kill -9 of brokers and workers, no job is lost or delivered when done.
chaos-queues: tools
	cd tests && ../$(BIN)/python -m chaos.queues --kills $(KILLS) --seed $(SEED) --json

# Workers of a queue die by SIGKILL and by SIGSTOP: how long until others have their jobs?
ROUNDS ?= 5
chaos-redelivery: tools
	cd tests && ../$(BIN)/python -m chaos.redelivery --rounds $(ROUNDS) --json

# Five deployed pipelines on three workers: workers, drivers, executors and brokers are killed.
MINUTES ?= 30
chaos-pipelines: tools
	cd tests && ../$(BIN)/python -m spark.kills.run --minutes $(MINUTES) --seed $(SEED) --json

# 100,000 messages copied in transactions under bounces: every client, way and store; an hour or so.
MESSAGES ?= 100000
txn-matrix: tools
	cd tests && ../$(BIN)/python -m chaos.transactions --messages $(MESSAGES) --seed $(SEED)

# A standalone Spark master with two workers, executors killed amid reads and writes; Spark Connect.
spark-cluster: $(STAMP)
	PENSTOCK_LONG=1 $(BIN)/python -m pytest tests/spark/cluster --durations 10

# The tests of Spark that take minutes each, and are left out of `make test`; an hour or more.
spark-long: $(STAMP)
	PENSTOCK_LONG=1 $(BIN)/python -m pytest tests/spark -m long --durations 10

# Every example of docs/SPARK.md on real Spark.
spark-docs: $(STAMP)
	$(BIN)/python -m pytest tests/spark/test_docs.py

# A checkpointed query stopped and killed twenty times at random points while a producer writes.
spark-restarts: $(STAMP)
	cd tests && ../$(BIN)/python -m spark.restarts --rounds 20 --seed $(SEED)

# A stream of a million rows, exactly once, while driver, executors and brokers are killed fifty times.
spark-exactly-once: $(STAMP)
	cd tests && ../$(BIN)/python -m spark.once.exactly_once_kills --rows 1000000 --kills 50 --seed $(SEED)

# Whole clusters under faults, one for each seed. sim-bugs: some seed finds every planted bug.
# SIM_PYTHON=/usr/bin/python3 runs them on another build of the same version, for one that is faster:
# pyenv builds without optimizations. Results add up in a file of the repository: commit it.
# sim-results counts the seeds that ran on this source code.
sim: $(STAMP)
	$(BIN)/penstock sim --seeds $(SEEDS) --jobs $(JOBS) --record tests/sim/seeds-run.jsonl \
		$(if $(SIM_PYTHON),--python $(SIM_PYTHON))

sim-results: $(STAMP)
	$(BIN)/penstock sim --results

sim-bugs: $(STAMP)
	$(BIN)/penstock sim --jobs $(JOBS) --bug all

# All brokers of simulated clusters lose power at once, as often as CUTS says; all topics are synced.
power-cuts: $(STAMP)
	$(BIN)/penstock sim --power-cuts $(CUTS)

# Brokers, clicks, a pipeline on Spark that counts them, and its output: under a minute.
demo: $(STAMP)
	$(BIN)/python -m examples.demo

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/penstock/records/*.so src/penstock/records/*.c
