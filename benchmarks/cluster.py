"""What does replication cost, and how much does growing the cluster slow down producers?

Throughput: confluent-kafka with acks=all sends to three brokers (three replicas,
min.insync.replicas 2) and to one broker without replicas. Both run on this machine all the time and
are loaded in turns, with three partitions each. The same processors write the same bytes three
times and read them twice more: if the disk were the limit, a third of the throughput would be the
best possible result.

Growth: three brokers have some data and receive a steady trickle of records. The time until a
record is acknowledged is compared between a calm period and the period after it, in which a fourth
broker joins and `penstock cluster rebalance` moves its share there; and again for `penstock cluster
drain`, which moves it back. All of them share this machine's processors and its disk, so they
notice the start of the new broker and the deletion of moved replicas, which they would not on
separate machines. The tool, which would run elsewhere, has a low priority. With `--data /dev/shm`
there is no shared disk. Each direction is repeated several times, each time with a new cluster, and
the median ratio counts. On a virtual machine, `stolen` is the share of processor time that the host
gave to others. If it is above one or two percent, the p99 says nothing about the brokers.

Run it from the project's root: `python -m benchmarks.cluster --json`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.clients import TIMEOUT_S, produce

PENSTOCK: Final = str(Path(sys.executable).with_name("penstock"))
PARTITIONS: Final = 3
MESSAGE_BYTES: Final = (100, 1024)
DURABILITIES: Final = ("fsync", "replicated")
TARGETS: Final = {"throughput_ratio": 0.25, "growth_p99_ratio": 3.0}
GROWING_PARTITIONS: Final = 12
TRICKLE_PER_S: Final = 300
_READY: Final = re.compile(r"ready bootstrap=(\S+)")
_names: Final = (f"cluster-{number}" for number in count())


@contextmanager
def running(*command: str) -> Iterator[str]:
    """Runs a server command until the block ends, and yields its bootstrap addresses."""
    process = subprocess.Popen(
        [PENSTOCK, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := _READY.search(line):
                yield found[1]
                return
        raise RuntimeError(f"penstock {' '.join(command)} did not start")
    finally:
        process.terminate()
        process.wait(60)


def brokers(root: str, number: int) -> tuple[str, ...]:
    """Returns the command for a cluster with that many brokers."""
    options = ("--data", root, "--port", "0", "--set", f"disk_reserve_bytes={64 << 20}")
    return ("up", "--no-console", "--brokers", str(number), *options)


@contextmanager
def topic(bootstrap: str, partitions: int, replicas: int, configs: dict[str, str]) -> Iterator[str]:
    """Creates a topic for the block, and waits until all its replicas are in sync."""
    name = next(_names)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = NewTopic(name, partitions, replicas, config=configs)
    admin.create_topics([made])[name].result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions.values()
        if len(found) == partitions and all(len(p.isrs) == replicas for p in found):
            break
        if time.monotonic() > deadline:
            raise RuntimeError(f"the replicas of {name} do not get in sync")
    try:
        yield name
    finally:
        admin.delete_topics([name])[name].result(TIMEOUT_S)


def throughput(root: str, messages: int, rounds: int) -> dict[str, dict[str, float]]:
    """Returns the median messages per second of both sides, and the ratio."""
    rates: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        sides = {
            "one": (stack.enter_context(running(*brokers(f"{root}/one", 1))), 1),
            "three": (stack.enter_context(running(*brokers(f"{root}/three", 3))), 3),
        }
        for _ in range(rounds):
            for durability in DURABILITIES:
                for size in MESSAGE_BYTES:
                    for side, (bootstrap, replicas) in sides.items():
                        configs = {"durability": durability}
                        configs["min.insync.replicas"] = str(min(2, replicas))
                        with topic(bootstrap, PARTITIONS, replicas, configs) as name:
                            rate = produce(bootstrap, name, messages, size, "all")
                        label = f"{size} bytes {durability}"
                        rates.setdefault(label, {}).setdefault(side, []).append(rate)
    found = {}
    for label, by_side in rates.items():
        one, three = (statistics.median(by_side[side]) for side in ("one", "three"))
        found[label] = {"one_per_s": one, "three_per_s": three, "ratio": three / one}
    return found


class Trickle:
    """Sends a few hundred records per second from its own thread, and measures each latency."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._name = name
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
        )
        self._latencies_s: list[float] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failures: list[KafkaError] = []

    def __enter__(self) -> Trickle:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._producer.flush(TIMEOUT_S)

    def taken_ms(self) -> tuple[float, float]:
        """Returns p99 and maximum latency of the records acknowledged since the last call."""
        taken, self._latencies_s = sorted(self._latencies_s), []
        if not taken:
            raise RuntimeError("nothing was acknowledged")
        return taken[int(len(taken) * 0.99)] * 1000, taken[-1] * 1000

    def _run(self) -> None:
        due = time.perf_counter()
        for number in count():
            if self._stopping.is_set():
                return
            due += 1 / TRICKLE_PER_S
            # Poll instead of sleeping, so that an acknowledgement is counted when it arrives.
            while (left := due - time.perf_counter()) > 0:
                self._producer.poll(left)
            self._send(number % GROWING_PARTITIONS, time.perf_counter())

    def _send(self, partition: int, began: float) -> None:
        def on_delivery(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self.failures.append(error)
            self._latencies_s.append(time.perf_counter() - began)

        value = b"x" * 100
        self._producer.produce(self._name, value, partition=partition, on_delivery=on_delivery)


def ticks() -> tuple[int, int]:
    """Returns the processors' time so far, and how much of it the host gave to other machines."""
    with open("/proc/stat", encoding="ascii") as stat:
        times = [int(each) for each in stat.readline().split()[1:]]
    # user, nice, system, idle, iowait, irq, softirq, steal; the time of guests is included in user.
    return sum(times[:8]), times[7]


def growth(root: str, calm_s: float, preload: int) -> dict[str, float]:
    """Returns the p99 of produce in calm periods, and while a broker joins and is drained."""
    with ExitStack() as stack:
        bootstrap = stack.enter_context(running(*brokers(root, 3)))
        configs = {"min.insync.replicas": "2"}
        name = stack.enter_context(topic(bootstrap, GROWING_PARTITIONS, 3, configs))
        produce(bootstrap, name, preload, 1024, "all", GROWING_PARTITIONS)
        trickle = stack.enter_context(Trickle(bootstrap, name))
        resting = threading.Event()
        found: dict[str, float] = {}

        def meanwhile(what: str, work: Callable[[], object]) -> None:
            # Records written before are still being flushed to the disk for some time.
            resting.wait(calm_s / 3)
            trickle.taken_ms()
            total, stolen = ticks()
            resting.wait(calm_s)
            found[f"{what}_calm_p99_ms"], _ = trickle.taken_ms()
            began = time.perf_counter()
            work()
            found[f"{what}_s"] = time.perf_counter() - began
            found[f"{what}_p99_ms"], found[f"{what}_worst_ms"] = trickle.taken_ms()
            found[f"{what}_ratio"] = found[f"{what}_p99_ms"] / found[f"{what}_calm_p99_ms"]
            total_now, stolen_now = ticks()
            found[f"{what}_stolen"] = (stolen_now - stolen) / max(total_now - total, 1)

        def move(*command: str) -> None:
            tool = ["nice", "-n", "19", PENSTOCK, "cluster", *command, "--execute", "--json"]
            tool += ["-b", bootstrap]
            subprocess.run(tool, check=True, stdout=subprocess.DEVNULL, timeout=600)

        def join() -> None:
            settings = ("broker_id=3", "port=0", f"data_dir={root}/broker-3")
            options = [part for each in settings for part in ("--set", each)]
            fourth = ("broker", "--config", f"{root}/broker-0.toml", *options)
            stack.enter_context(running(*fourth))
            move("rebalance")

        meanwhile("joining", join)
        meanwhile("draining", lambda: move("drain", "3"))
        if trickle.failures:
            raise RuntimeError(f"records failed while brokers changed: {trickle.failures[:1]}")
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="few messages, only to see it run")
    parser.add_argument("--only", choices=("throughput", "growth"), help="one of the two")
    parser.add_argument("--data", metavar="DIR", help="where the brokers' files are to be")
    options = parser.parse_args()
    messages, rounds, calm_s = (5_000, 1, 3.0) if options.smoke else (100_000, 3, 15.0)
    root = tempfile.mkdtemp(prefix="penstock-bench-", dir=options.data)
    result: dict[str, object] = {"targets": TARGETS}
    try:
        if options.only != "growth":
            rates = throughput(root, messages, rounds)
            result["throughput"] = rates
            for label, rate in rates.items():
                print(
                    f"acks=all, {label:22} one broker {rate['one_per_s']:9,.0f}/s"
                    f"  three {rate['three_per_s']:9,.0f}/s  ratio {rate['ratio']:.2f}"
                )
        if options.only != "throughput":
            # Enough data for about a minute of throttled copying; with less, a move would hardly be
            # noticed.
            grown = []
            for number in range(rounds):
                grown.append(growth(f"{root}/growing-{number}", calm_s, 12 * messages))
                print("growth", *(f"{key}={value:.3g}" for key, value in grown[-1].items()))
                shutil.rmtree(f"{root}/growing-{number}", ignore_errors=True)
            middle = {
                way: statistics.median(each[f"{way}_ratio"] for each in grown)
                for way in ("joining", "draining")
            }
            result["growth"] = {"ratios": middle, "rounds": grown}
            print("growth, middle ratio", *(f"{way}={ratio:.2f}" for way, ratio in middle.items()))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
