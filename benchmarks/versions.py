"""Is this version of Penstock slower than another one?

    python -m benchmarks.versions /path/to/the/other/.venv/bin/penstock --json

A broker of each version runs, and both are loaded in turns, in many short rounds, so that other
work on the machine affects both. Each side of a round does the same amount of work. What is
compared is the processor time that the work takes in the broker, and in the client where the client
is ours: its version is that of its broker, in a process of its own. The clock is reported too, but
depends on what else runs.

- fetch: responses of 1 MiB, sent from the file.
- confluent-kafka: messages of 100 bytes and of 1 KiB, produced and consumed.
- our clients and confluent-kafka: records of 1 KiB, with and without transactions of 1,000 records.

`benchmarks.broker --against` compares produce requests of four sizes in the same way.

A ratio above 1 says that this version does more for each second of processor time. To learn how
large the noise is, compare a version with itself: differences below that mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from benchmarks.broker import Bench, fetch_request, start_broker
from benchmarks.clients import MESSAGE_BYTES, consume, create_topic, produce
from benchmarks.load import cpu_seconds
from benchmarks.transactions import LANES, Work

FETCH_SECONDS: Final = 0.4
ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Round:
    """What one side did in one round, for each second of processor time and of the clock."""

    per_broker_s: float
    per_client_s: float
    per_s: float


Side = Callable[[], Round]


class ClientProcess:
    """Runs our clients of one version. It reads jobs from its standard input, one JSON list a line,
    and answers each with a line of JSON."""

    def __init__(self, python: str) -> None:
        command = [python, "-m", "benchmarks.versions", "--client"]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def send(self, lane: str, bootstrap: str, topic: str, records: int, txn: bool) -> list[float]:
        """Returns records per second, and the processor time of the client."""
        job = [lane, bootstrap, topic, records, txn]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the client process ended with {self._process.wait()}")
        found: list[float] = json.loads(answer)
        return found

    def __enter__(self) -> ClientProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def run_client() -> None:
    for line in sys.stdin:
        lane, bootstrap, topic, records, transactional = json.loads(line)
        gc.collect()
        began = time.process_time()
        work = Work(bootstrap, topic, records, b"x" * 1024, transactional, None)
        rate = LANES[lane](work)
        print(json.dumps([rate, time.process_time() - began]), flush=True)


class Version:
    """One version: its broker, and a process with its clients."""

    def __init__(self, root: str, penstock: str, stack: ExitStack) -> None:
        process = stack.enter_context(start_broker(root, penstock))
        self.bench = Bench(root, stack, process)
        self.bootstrap = "{}:{}".format(*process.address)
        python = str(Path(penstock).with_name("python")) if penstock else sys.executable
        self.client = stack.enter_context(ClientProcess(python))
        self._pid = process.pid
        self._fetched = fetch_request(self.bench.fetched_log()[0], 0)
        self._written: dict[int, str] = {}

    def fetch(self) -> Round:
        result = self.bench.drive([self._fetched], 4, FETCH_SECONDS)
        return Round(result.per_server_cpu_s, 0.0, result.per_second)

    def produce(self, size: int, messages: int) -> Round:
        topic = self._written[size] = create_topic(self.bootstrap, {"durability": "replicated"})
        return self._measure(
            messages, partial(produce, self.bootstrap, topic, messages, size, "all")
        )

    def consume(self, size: int, messages: int) -> Round:
        topic = self._written[size]
        return self._measure(messages, partial(consume, self.bootstrap, topic, messages))

    def send(self, lane: str, records: int, transactional: bool) -> Round:
        topic = create_topic(self.bootstrap, {})
        began = cpu_seconds(self._pid)
        rate, client_s = self.client.send(lane, self.bootstrap, topic, records, transactional)
        return Round(records / (cpu_seconds(self._pid) - began), records / client_s, rate)

    def _measure(self, messages: int, work: Callable[[], float]) -> Round:
        began = cpu_seconds(self._pid)
        rate = work()
        return Round(messages / (cpu_seconds(self._pid) - began), 0.0, rate)


def take_turns(ours: Side, other: Side, rounds: int) -> dict[str, float]:
    """Returns our medians relative to the other's. The first round is warm-up."""
    found: tuple[list[Round], list[Round]] = ([], [])
    for number in range(rounds + 1):
        sides = ((0, ours), (1, other))
        # Nobody always goes first.
        for index, side in sides if number % 2 else reversed(sides):
            result = side()
            if number:
                found[index].append(result)

    def ratio(rate: Callable[[Round], float]) -> float:
        mine, others = (statistics.median(map(rate, results)) for results in found)
        return mine / others

    ratios = {"by_broker": ratio(lambda result: result.per_broker_s)}
    if found[0][0].per_client_s:
        ratios["by_client"] = ratio(lambda result: result.per_client_s)
    return ratios | {"by_clock": ratio(lambda result: result.per_s)}


def compare(
    ours: Version, other: Version, rounds: int, messages: int, records: int
) -> Mapping[str, dict[str, float]]:
    results = {"fetch 1 MiB": take_turns(ours.fetch, other.fetch, rounds)}
    show("fetch 1 MiB", results["fetch 1 MiB"])
    for size in MESSAGE_BYTES:
        for kind in ("produce", "consume"):
            name = f"confluent-kafka {kind} {size} bytes"
            sides = [partial(getattr(each, kind), size, messages) for each in (ours, other)]
            results[name] = take_turns(sides[0], sides[1], rounds)
            show(name, results[name])
    for lane in LANES:
        for transactional in (False, True):
            name = f"{lane}{', transactions' if transactional else ''}"
            sides = [partial(each.send, lane, records, transactional) for each in (ours, other)]
            results[name] = take_turns(sides[0], sides[1], rounds)
            show(name, results[name])
    return results


def show(name: str, ratios: Mapping[str, float]) -> None:
    print(f"{name:38}", *(f"{key} {value:5.3f} " for key, value in ratios.items()), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", nargs="?", help="the `penstock` command of the other version")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="few messages, only to see it run")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.client:
        run_client()
        return
    if options.other is None:
        parser.error("name the `penstock` command of the version to compare with")
    work: tuple[int, int, int] = (options.rounds, 200_000, 40_000)
    rounds, messages, records = (1, 1_000, 1_000) if options.smoke else work
    root = tempfile.mkdtemp(prefix="penstock-bench-")
    results: Mapping[str, Any]
    try:
        with ExitStack() as stack:
            ours = Version(f"{root}/ours", "", stack)
            other = Version(f"{root}/other", options.other, stack)
            results = compare(ours, other, rounds, messages, records)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
