"""Kafka's transaction matrix: copies a topic exactly once while brokers and copiers are bounced.

The source topic has whole numbers in several partitions. Copiers of one group read them and write
them to the same partition of a target topic, in transactions that also commit the group's offsets.
Until the copy is complete, one fault follows the other:

    what   brokers (three, with three replicas of everything) or copiers
    how    clean: stopped with SIGTERM and restarted; hard: SIGKILL and restarted
    both   brokers and copiers in turn, clean or hard at random
    with   confluent-kafka, our `exactly_once`, and the Java client before and since KIP-890

A bounced copier keeps its transactional id. Some copiers stay down so long that others get their
partitions, some brokers so long that others lead. At the end every reader of committed records,
during the copy or after it, has got each number once and in the order of the source. The group's
offsets are at the end of the source, no transaction is open, and all replicas have the same bytes.

Run: `PYTHONPATH=tests python -m chaos.transactions`; the last line is a summary in JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import confluent_kafka as ck

import penstock
from penstock.errors import ClientError
from penstock.testing.slowness import patient

from .broker_processes import BrokerProcesses, NotInTime, pause, wait_for
from .transactions_copiers import CLIENTS, CopierProcesses, NotHere, program
from .transactions_ledger import KINDS, Findings, judge
from .transactions_readers import (
    ConfluentReader,
    OurReader,
    Reader,
    misplaced_group,
    read_to_end,
    unended,
)
from .workload import create_topic

STORES = ("sqlite", "etcd")
WAYS = {
    "clean-brokers": (("brokers",), ("clean",)),
    "hard-brokers": (("brokers",), ("hard",)),
    "clean-copiers": (("copiers",), ("clean",)),
    "hard-copiers": (("copiers",), ("hard",)),
    "both": (("brokers", "copiers"), ("clean", "hard")),
}
SOURCE, TARGET, GROUP = "source", "target", "copiers"
PARTITIONS = 6
SETTINGS = {"transaction.state.log.num.partitions": 3}
PROGRESS_S = 90.0
SYNC_S = 120.0
FEED_S = 120.0
AWAY_S = 13.0
"""Longer than the session of a broker or of a group member."""
CALM_S = 1.0


@dataclass(frozen=True)
class Cell:
    client: str
    way: str
    store: str = "sqlite"

    def __str__(self) -> str:
        return f"{self.way} {self.client} {self.store}"


@dataclass(frozen=True)
class Load:
    """How much is copied, and how slowly: faults must have something to interrupt."""

    messages: int = 100_000
    size: int = 250
    """The maximum number of records in a transaction."""
    pause_ms: int = 250
    """How long each transaction stays open after its records are sent."""
    abort_one_in: int = 12
    away_one_in: int = 4
    portions: int = 1
    """The source is written in this many pieces, each just before a fault."""
    spares_coordinator: bool = False
    """Whether the broker that coordinates the group is never bounced: librdkafka usually hangs when
    it goes away, and it takes a while to notice."""


@dataclass
class Outcome:
    cell: Cell
    struck: Counter[str] = field(default_factory=Counter)
    aborts: Counter[str] = field(default_factory=Counter)
    findings: Findings = field(default_factory=Findings)
    seconds: float = 0.0
    gap_s: float = 0.0
    """The longest wait for progress after a bounce."""
    hung: int = 0
    """Clients of librdkafka that hung, and were replaced."""

    @property
    def complaints(self) -> list[str]:
        return self.findings.complaints

    def as_json(self) -> dict[str, Any]:
        return {
            "cell": str(self.cell),
            "struck": dict(self.struck),
            "aborted": sum(self.aborts.values()),
            "drawn": self.aborts["drawn"],
            "hung_clients_replaced": self.hung,
            "seconds": round(self.seconds, 1),
            "gap_s": round(self.gap_s, 1),
            **{kind: self.findings.counts[kind] for kind in KINDS},
            "complaints": self.complaints,
        }


def numbers(messages: int) -> list[list[int]]:
    """Returns the numbers in each partition of the source."""
    return [list(range(index, messages, PARTITIONS)) for index in range(PARTITIONS)]


def feed(bootstrap: str, source: Sequence[Sequence[int]]) -> None:
    failures: list[str] = []

    def answered(error: ck.KafkaError | None, _: ck.Message) -> None:
        if error is not None:
            failures.append(str(error))

    producer = ck.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    for index, those in enumerate(source):
        for number in those:
            text = str(number).encode()
            while True:
                try:
                    producer.produce(SOURCE, text, text, index, on_delivery=answered)
                    break
                except BufferError:
                    producer.poll(0.05)
    left = producer.flush(patient(FEED_S))
    assert not left and not failures, f"the source was not written: {left} left, {failures[:3]}"


class Play:
    """One cell of the matrix, on its own cluster."""

    def __init__(self, directory: Path, cell: Cell, load: Load, seed: int) -> None:
        self.cell = cell
        self.load = load
        self.outcome = Outcome(cell)
        self.fleet = BrokerProcesses(directory, 3, cell.store, SETTINGS)
        self.source = numbers(load.messages)
        self.chance = random.Random(f"{seed} {cell}")
        self.readers: list[Reader] = []
        self._directory = directory
        self._squad: CopierProcesses | None = None
        self._fed = 0
        """How many numbers of each partition are in the source so far."""

    def run(self) -> Outcome:
        began_s = time.monotonic()
        try:
            self._open()
            self._strike_until_copied()
            self._settle()
            self._judge()
        except (AssertionError, ClientError, ck.KafkaException, OSError) as error:
            said = "" if self._squad is None else "; ".join(c.said() for c in self.squad.copiers)
            self._complain([f"{error!r}; copiers said last: {said}"])
        finally:
            for reader in self.readers:
                reader.stop()
            if self._squad is not None:
                self._squad.kill()
            self.fleet.close()
        self._complain(self.fleet.complaints())
        self.outcome.seconds = time.monotonic() - began_s
        return self.outcome

    @property
    def squad(self) -> CopierProcesses:
        assert self._squad is not None
        return self._squad

    def _complain(self, texts: Sequence[str]) -> None:
        self.outcome.findings.complaints += texts

    def _open(self) -> None:
        command = program(self.cell.client, self._directory)
        bootstrap = self.fleet.start()
        for topic in (SOURCE, TARGET):
            create_topic(bootstrap, topic, PARTITIONS)
            self.fleet.wait_in_sync(topic)
        self._feed()
        load = self.load
        how = [str(each) for each in (load.size, load.pause_ms, load.abort_one_in)]
        self._squad = CopierProcesses(
            self._directory,
            lambda name: [*command, bootstrap, SOURCE, TARGET, GROUP, name, *how],
        )
        self.readers = [
            kind(bootstrap, TARGET, PARTITIONS) for kind in (ConfluentReader, OurReader)
        ]
        for reader in self.readers:
            reader.start()
        self.squad.start()
        self._wait_for_progress()

    def _feed(self) -> None:
        """Writes the next portion of the source, if there is one."""
        portion = -(-len(self.source[0]) // self.load.portions)
        if self._fed < len(self.source[0]):
            begin, self._fed = self._fed, self._fed + portion
            feed(self.fleet.bootstrap, [those[begin : self._fed] for those in self.source])

    # -- faults ------------------------------------------------------------------------------------

    def _strike_until_copied(self) -> None:
        who, how = WAYS[self.cell.way]
        turns = cycle(who)
        while not self._is_copied():
            self._feed()
            struck, hard = next(turns), self.chance.choice(how) == "hard"
            self._bounce_broker(hard) if struck == "brokers" else self._bounce_copier(hard)
            self.outcome.struck[f"{'hard' if hard else 'clean'} {struck}"] += 1
            self._wait_for_progress()
            pause(self.chance.random() * CALM_S)

    def _bounce_broker(self, hard: bool) -> None:
        nodes = dict(self.fleet.nodes)
        if self.load.spares_coordinator:
            with penstock.Admin(self.fleet.bootstrap) as admin:
                del nodes[admin.describe_group(GROUP).coordinator]
        node = self.chance.choice(list(nodes.values()))
        node.kill() if hard else node.stop()
        self._stay_away()
        node.launch()
        node.wait_ready()
        if self.chance.random() < 0.5:
            self.fleet.wait_in_sync(TARGET, SYNC_S)

    def _bounce_copier(self, hard: bool) -> None:
        self.squad.tend()
        copier = self.chance.choice(self.squad.copiers)
        copier.kill() if hard else self.squad.stop_one(copier)
        self._stay_away()
        copier.launch()

    def _stay_away(self) -> None:
        """Usually does not wait; sometimes waits long enough that others take over."""
        if self.chance.randrange(self.load.away_one_in) == 0:
            pause(AWAY_S)

    def _is_copied(self) -> bool:
        return self._fed >= len(self.source[0]) and self._is_fed_copied()

    def _is_fed_copied(self) -> bool:
        """Returns whether one reader has the last number of every partition."""
        pairs = zip(self.readers[0].sights, self.source, strict=True)
        return all(seen and seen[-1][1] == those[: self._fed][-1] for seen, those in pairs)

    def _wait_for_progress(self) -> None:
        before = self.readers[0].count

        def has_grown() -> bool:
            self.squad.tend()
            self._tend_readers()
            return self.readers[0].count > before or self._is_fed_copied()

        took_s = wait_for("something more is copied", has_grown, PROGRESS_S)
        self.outcome.gap_s = max(self.outcome.gap_s, took_s)

    def _tend_readers(self) -> None:
        for number, reader in enumerate(self.readers):
            if reader.is_hung and not reader.stopping.is_set():
                self.outcome.hung += 1
                self.readers[number] = reader.replaced()

    # -- the end -----------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Waits until copiers have stopped and all replicas are in sync."""
        self.squad.stop()
        for topic in (SOURCE, TARGET):
            self.fleet.wait_in_sync(topic, SYNC_S)

    def _judge(self) -> None:
        bootstrap = self.fleet.bootstrap
        self._complain(unended(bootstrap, TARGET, PARTITIONS))
        sights = {"afterwards": read_to_end(bootstrap, TARGET, PARTITIONS)}
        count = sum(map(len, sights["afterwards"]))
        for number in range(len(self.readers)):
            self._end(number, count)
            sights[self.readers[number].name] = self.readers[number].sights
        found = judge(self.source, sights)
        self.outcome.findings.counts += found.counts
        self._complain(found.complaints)
        self._complain(misplaced_group(bootstrap, GROUP, SOURCE, [*map(len, self.source)]))
        self._complain(self.squad.ended)
        self.outcome.aborts = self.squad.aborts()
        self.outcome.hung += self.squad.hung
        for node in self.fleet.nodes.values():
            node.stop()
        for topic in (SOURCE, TARGET):
            for index in range(PARTITIONS):
                self._complain(self.fleet.differences(topic, index))

    def _end(self, number: int, count: int) -> None:
        def has_all() -> bool:
            self._tend_readers()
            return self.readers[number].count >= count

        try:
            wait_for(f"reader {number} has got {count} records", has_all, SYNC_S)
        except NotInTime as late:
            self._complain([f"{late}: it has {self.readers[number].count}"])
        reader = self.readers[number]
        reader.stop()
        self._complain(reader.failures)


def cells(clients: Sequence[str], ways: Sequence[str], stores: Sequence[str]) -> list[Cell]:
    """Returns every client with every way; the stores alternate, so each client runs with both."""
    return [
        Cell(client, way, stores[(turn + turn // 2 + shift) % len(stores)])
        for turn, way in enumerate(ways)
        for shift, client in enumerate(clients)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=Load.messages)
    parser.add_argument("--seed", type=int, default=1, help="for who is struck, and for how long")
    for name, known in (("client", CLIENTS), ("way", WAYS), ("store", STORES)):
        parser.add_argument(f"--{name}", choices=known, action="append", help="only this one")
    parser.add_argument("--keep", action="store_true", help="leave the files of bad cells")
    given = parser.parse_args()
    # Ending this process ends its brokers, copiers and stores as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    stores = given.store or STORES
    skipped: list[str] = []
    if "etcd" in stores and shutil.which("etcd") is None:
        stores = ("sqlite",)
        skipped.append("etcd is not installed: `make tools` as root installs it")
        say(f"left out: {skipped[0]}")
    chosen = cells(given.client or CLIENTS, given.way or list(WAYS), stores)
    done: list[Outcome] = []
    for number, cell in enumerate(chosen, 1):
        directory = Path(tempfile.mkdtemp(prefix="penstock-txn-"))
        try:
            outcome = Play(directory, cell, Load(given.messages), given.seed).run()
        except NotHere as missing:
            skipped.append(f"{cell}: {missing}")
            say(f"[{number}/{len(chosen)}] left out: {skipped[-1]}")
            continue
        done.append(outcome)
        say(f"[{number}/{len(chosen)}] {json.dumps(outcome.as_json())}")
        if outcome.complaints and given.keep:
            say(f"its files are in {directory}")
        else:
            shutil.rmtree(directory)
    print(json.dumps(summary(done, skipped, given.messages)))
    return 1 if any(outcome.complaints for outcome in done) else 0


def summary(done: Sequence[Outcome], skipped: Sequence[str], messages: int) -> dict[str, Any]:
    struck: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for outcome in done:
        struck += outcome.struck
        wrong += outcome.findings.counts
    return {
        "cells": len(done),
        "left_out": list(skipped),
        "copied": messages * len(done),
        "struck": dict(struck),
        "aborted": sum(sum(outcome.aborts.values()) for outcome in done),
        "hung_clients_replaced": sum(outcome.hung for outcome in done),
        **{kind: wrong[kind] for kind in KINDS},
        "seconds": round(sum(outcome.seconds for outcome in done), 1),
        "gap_max_s": round(max((outcome.gap_s for outcome in done), default=0.0), 1),
        "complaints": [f"{each.cell}: {text}" for each in done for text in each.complaints],
    }


if __name__ == "__main__":
    sys.exit(main())
