"""What do metrics cost producers, and how long does a scrape of a large broker take?

Cost: first the time that metrics add to a produce request in the broker's session, measured by
calling it with and without them over and over, with a stub for the fast path: nanoseconds, which do
not depend on how busy the machine is. Then the same small produce requests are sent to a normal
broker and to one that counts nothing (`unwatched.py`), in turns, and the processor time per request
is compared. Small batches and acks=1 are the worst case, because nothing else costs less. A third
broker is scraped every second meanwhile.

Scrape: a broker with `--topics` topics of one partition and `--groups` groups, each with offsets
for `--offsets` of them, is scraped over and over, idle and while one client produces. To show how
long scrapes keep others waiting, that client's round trips are measured with and without scrapes.

Run it from the project's root: `python -m benchmarks.metrics --json`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import floor
from benchmarks.broker import CONNECTIONS, KIB, MIB, Bench, batch_of, produce_request
from benchmarks.load import (
    Address,
    Result,
    ServerProcess,
    cpu_seconds,
)
from benchmarks.scale import READY, BrokerProcess, Client, create_topics
from benchmarks.unwatched import on_frame
from penstock.broker.counters import BrokerCounters
from penstock.broker.dispatch import BrokerSession
from penstock.net.session import Answer
from penstock.runtime import SystemClock
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
)

SIZES: Final = (KIB, 16 * KIB)
COST_MAX: Final = 0.02
SCRAPE_MAX_S: Final = 0.5
SCRAPES: Final = 10
CALLS: Final = 3_200
_ANSWER: Final = (b"",)


def start(data: str, program: list[str], *options: str) -> ServerProcess:
    def ready(line: str) -> Address | None:
        found = READY.search(line)
        return (found[1], int(found[2])) if found else None

    command = [*program, "up", "--data", data, "--port", "0", "--no-console", *options]
    return ServerProcess([*command, "--set", f"disk_reserve_bytes={64 * MIB}"], ready)


class Side(Bench):
    """A broker for this benchmark."""

    def __init__(self, data: str, stack: ExitStack, program: list[str], *options: str) -> None:
        process = start(data, program, *options)
        super().__init__(data, stack, stack.enter_context(process))


def metrics_url(data: str) -> str:
    about = json.loads(Path(data, "broker-0", "broker.json").read_text())
    return f"http://{about['metrics']}/metrics"


class Scraping:
    """Scrapes at an interval, on its own thread."""

    def __init__(self, url: str, every_s: float) -> None:
        self.times: list[float] = []
        self._url = url
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Scraping:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.times.append(scrape(self._url)[0])


def scrape(url: str) -> tuple[float, int, int]:
    """Returns seconds, bytes and samples."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read()
    took = time.perf_counter() - began
    samples = sum(not line.startswith(b"#") for line in text.splitlines())
    return took, len(text), samples


class _Lane:
    """Answers at once, always with the same response."""

    def serve(self, frame: memoryview, version: int, correlation_id: int) -> Answer:
        return _ANSWER


def added_ns(repeats: int) -> float:
    """Returns the time added to a produce request on the fast path; one in 32 is timed."""
    counters = BrokerCounters(SystemClock())
    session = BrokerSession.__new__(BrokerSession)
    # The session calls only what `_Lane` has.
    session._fast_path = _Lane()  # type: ignore[assignment]
    session._now, session._answered = counters.now, counters.requests.answered
    frame = memoryview(bytes(100))
    least = {BrokerSession.on_frame: float("inf"), on_frame: float("inf")}
    for _ in range(repeats):
        for serve, before in list(least.items()):
            began = time.perf_counter()
            for _ in range(CALLS):
                serve(session, frame)
            least[serve] = min(before, time.perf_counter() - began)
    watched, unwatched = least.values()
    return (watched - unwatched) / CALLS * 1e9


def cost(root: str, rounds: int, seconds: float) -> dict[str, object]:
    found: dict[str, object] = {"added_ns": added_ns(20 * rounds)}
    print(f"added to a produce request: {found['added_ns']:.0f} ns")
    program = str(Path(sys.executable).with_name("penstock"))
    plain = [sys.executable, "-m", "benchmarks.unwatched"]
    with ExitStack() as stack:
        without = Side(f"{root}/without", stack, plain, "--metrics", "off")
        counted = Side(f"{root}/with", stack, [program])
        scraped = Side(f"{root}/scraped", stack, [program])
        url = metrics_url(scraped.data)
        scrape(url)

        def while_scraped(batch: bytearray) -> Result:
            with Scraping(url, 1.0):
                return scraped.produce(batch, seconds)

        for size in SIZES:
            batch = batch_of(size)
            sides = {
                "without": partial(without.produce, batch, seconds),
                "with": partial(counted.produce, batch, seconds),
                "scraped": partial(while_scraped, batch),
            }
            found[f"produce_{size}"] = compare(size, sides, rounds)
    return found


def compare(size: int, sides: Mapping[str, Callable[[], Result]], rounds: int) -> dict[str, object]:
    """Compares the minimum processor time per request of all rounds. Anything above the minimum is
    caused by other programs, and on a busy machine that is more than the difference to be
    measured."""
    least = dict.fromkeys(sides, float("inf"))
    for number in range(rounds + 1):
        for name, side in sides.items():
            result = side()
            if number:
                least[name] = min(least[name], 1e6 / result.per_server_cpu_s)
    cost = {name: us / least["without"] - 1 for name, us in least.items() if name != "without"}
    in_flight = floor.in_flight_for(size)
    print(f"produce, {size // KIB} KiB, {CONNECTIONS} x {in_flight} in flight, server time each:")
    for name, us in least.items():
        print(f"  {name:8} {us:6.2f} us  {cost.get(name, 0):+.1%}")
    return {"server_us": least, "cost": cost, "target": COST_MAX}


def commit_offsets(client: Client, topics: list[str], groups: int, offsets: int) -> None:
    for number in range(groups):
        names = [topics[(number * 53 + each) % len(topics)] for each in range(offsets)]
        request = OffsetCommitRequest(
            f"group-{number:03}",
            topics=[
                OffsetCommitRequest.Topic(name, partitions=[OffsetCommitRequest.Partition(0, 0)])
                for name in dict.fromkeys(names)
            ],
        )
        while True:
            client.ask(FindCoordinatorRequest("group"), 2, FindCoordinatorResponse)
            answer = client.ask(request, 8, OffsetCommitResponse)
            codes = {each.partitions[0].error_code for each in answer.topics}
            if codes == {ErrorCode.NONE}:
                break
            time.sleep(0.1)


def round_trips(client: Client, frame: bytes, seconds: float) -> dict[str, float]:
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        client.exchange(frame)
        times.append(time.perf_counter() - began)
    times.sort()
    return {
        "median_ms": 1000 * statistics.median(times),
        "p99_ms": 1000 * times[int(len(times) * 0.99)],
        "max_ms": 1000 * times[-1],
    }


def large(root: str, topics: int, groups: int, offsets: int, seconds: float) -> dict[str, object]:
    data = f"{root}/large"
    names = [f"topic-{index:05}" for index in range(topics)]
    settings = ("group.initial.rebalance.delay.ms=0", f"disk_reserve_bytes={64 * MIB}")
    with BrokerProcess(data, *settings) as broker:
        client = Client(broker.address)
        create_topics(client, names, durability="replicated")
        commit_offsets(client, names, groups, offsets)
        url = metrics_url(data)
        first_s = scrape(url)[0]
        began_s = cpu_seconds(broker.pid)
        rest = [scrape(url) for _ in range(SCRAPES)]
        cpu_s = (cpu_seconds(broker.pid) - began_s) / SCRAPES
        frame = produce_request(names[0], 0, batch_of(KIB))
        round_trips(client, frame, 0.2)
        alone = round_trips(client, frame, seconds)
        with Scraping(url, 0.5) as scraping:
            together = round_trips(client, frame, seconds)
        client.close()
    return {
        "topics": topics,
        "groups": groups,
        "offsets": groups * offsets,
        "first_s": first_s,
        "median_s": statistics.median(took for took, _, _ in rest),
        "max_s": max(took for took, _, _ in rest),
        "cpu_s": cpu_s,
        "while_producing_max_s": max(scraping.times, default=0.0),
        "target_s": SCRAPE_MAX_S,
        "bytes": rest[-1][1],
        "samples": rest[-1][2],
        "round_trips_alone": alone,
        "round_trips_while_scraped": together,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="short rounds, only to see it run")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--offsets", type=int, default=50, help="topics of each group")
    parser.add_argument("--only", choices=("cost", "scrape"), help="one of the two")
    parser.add_argument("--directory", help="where to put the data (default: a temporary one)")
    options = parser.parse_args()
    rounds, seconds = (1, 0.05) if options.smoke else (15, 0.4)
    topics = 100 if options.smoke else options.topics
    root = tempfile.mkdtemp(prefix="penstock-bench-", dir=options.directory)
    found: dict[str, object] = {}
    try:
        if options.only != "scrape":
            found["cost"] = cost(root, rounds, seconds)
        if options.only != "cost":
            found["scrape"] = large(root, topics, options.groups, options.offsets, 10 * seconds)
            print(json.dumps(found["scrape"], indent=2))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
