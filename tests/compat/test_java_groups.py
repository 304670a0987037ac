"""Groups with members of our client and of the Java client; either may be the group leader."""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import pytest

from client.membership.mixed_group import OURS, PARTITIONS, MixedGroup
from compat.clients.base import DEADLINE_S, Consumer, Received
from compat.conftest import TopicFactory
from compat.java_build import compiled
from compat.toolchain import java_flags
from penstock.testing.slowness import patient

VERSION = "4.4.0"
JAVA = "java"
LACKS = "it is told only to commit and to close"
CLASSES = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}
CASTS = [
    ("range", (OURS, JAVA, OURS)),
    ("roundrobin", (JAVA, OURS, JAVA)),
    ("sticky", (OURS, JAVA, OURS)),
    ("sticky", (JAVA, OURS, JAVA)),
    ("cooperative-sticky", (OURS, JAVA, OURS)),
    ("cooperative-sticky", (JAVA, OURS, JAVA)),
]


class JavaMember(Consumer):
    """A separate process (`java/Member.java`), which polls by itself."""

    def __init__(self, class_path: str, bootstrap: str, group: str, topic: str, strategy: str):
        super().__init__(topic)
        flags = [*java_flags("128m"), "-cp", class_path]
        self._process = subprocess.Popen(
            ["java", *flags, "Member", bootstrap, group, topic, CLASSES[strategy]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._records: queue.Queue[Received] = queue.Queue()
        self._committed: queue.Queue[None] = queue.Queue()
        self._owned: frozenset[int] = frozenset()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            match line.split():
                case ["record", partition, offset, value]:
                    position = int(partition), int(offset)
                    self._records.put(Received(self.topic, *position, -1, None, value.encode(), ()))
                case ["owned", *numbers]:
                    self._owned = frozenset(map(int, numbers))
                case ["committed"]:
                    self._committed.put(None)
                case [("assigned" | "revoked" | "lost") as what, *numbers]:
                    self.rebalances.append((what, frozenset(map(int, numbers))))

    def _tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def fetch(self, timeout_s: float) -> list[Received]:
        got: list[Received] = []
        deadline = time.monotonic() + timeout_s
        while not got and (left_s := deadline - time.monotonic()) > 0:
            try:
                got.append(self._records.get(timeout=left_s))
            except queue.Empty:
                break
        while not self._records.empty():
            got.append(self._records.get_nowait())
        return got

    def assignment(self) -> frozenset[int]:
        return self._owned

    def commit(self, offsets: Mapping[int, tuple[int, str]] | None = None) -> None:
        self._tell("commit")
        self._committed.get(timeout=patient(DEADLINE_S))

    def shut(self) -> None:
        try:
            self._tell("close")
            self._process.wait(DEADLINE_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._thread.join(DEADLINE_S)
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                # It may still have a command for a process that is gone.
                with suppress(BrokenPipeError):
                    stream.close()

    def seek(self, partition: int, offset: int) -> None:
        raise NotImplementedError(LACKS)

    def pause(self, *partitions: int) -> None:
        raise NotImplementedError(LACKS)

    def resume(self, *partitions: int) -> None:
        raise NotImplementedError(LACKS)

    def position(self, partition: int) -> int:
        raise NotImplementedError(LACKS)

    def bounds(self, partition: int) -> tuple[int, int]:
        raise NotImplementedError(LACKS)

    def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        raise NotImplementedError(LACKS)

    def committed(self, partition: int) -> tuple[int, str] | None:
        raise NotImplementedError(LACKS)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(VERSION, tmp_path_factory.mktemp("member"), "Member")


@pytest.mark.parametrize(("strategy", "cast"), CASTS, ids=str)
def test_a_group_with_java_rebalances(
    broker: str,
    topic: TopicFactory,
    name: Callable[[], str],
    java: str,
    strategy: str,
    cast: tuple[str, ...],
) -> None:
    """Members join one by one, then leave in the same order: no record is lost or duplicated."""
    company = MixedGroup(broker, name(), topic(PARTITIONS), strategy)
    try:
        for kind in cast:
            if kind == JAVA:
                company.admit(JavaMember(java, broker, company.group, company.topic, strategy))
            else:
                company.enter(kind)
            company.check()
        while len(company.members) > 1:
            company.leave(company.members[0])
            company.check()
    finally:
        company.close()
