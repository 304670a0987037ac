"""Members of groups, each a process of its own with its own library. They speak the new protocol
(KIP-848), and all but those of franz-go also the classic one.

A member polls until it is told to close, commits after every poll, and says on its output:

    owned orders-0 orders-1        what it reads now
    record orders 0 17 VALUE       a record, before it is committed
    assigned, revoked, lost ...    what its rebalance listener was told
    error TEXT                     a failure after which it continues
    closed                         it has left the group
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from compat.clients.base import DEADLINE_S
from compat.java_build import VERSIONS, compiled
from compat.toolchain import HERE, go_program, java_flags
from penstock import Producer
from penstock.testing.slowness import patient

JAVA, CONFLUENT, GO, OURS = "java", "confluent", "franz-go", "ours"
KINDS = (JAVA, CONFLUENT, GO, OURS)
NEW, CLASSIC = "consumer", "classic"
Place = tuple[str, int, int]


@dataclass
class NewMember:
    """One process and what it has said."""

    process: subprocess.Popen[str]
    owned: frozenset[str] = frozenset()
    records: list[tuple[Place, str]] = field(default_factory=list)
    told: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    is_closed: bool = False

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            match line.split():
                case ["record", topic, partition, offset, value]:
                    self.records.append(((topic, int(partition), int(offset)), value))
                case ["owned", *names]:
                    self.owned = frozenset(names)
                case [("assigned" | "revoked" | "lost") as what, *names]:
                    self.told.append((what, frozenset(names)))
                case ["closed"]:
                    self.is_closed = True

    def moved(self) -> list[tuple[str, frozenset[str]]]:
        """Returns what it was told that concerned partitions."""
        return [(what, names) for what, names in self.told if names]


class NewGroup:
    """A group, the members that the test starts, and what is produced for it."""

    def __init__(self, bootstrap: str, group: str, commands: Callable[[str], Sequence[str]]):
        self.bootstrap = bootstrap
        self.group = group
        self.members: list[NewMember] = []
        self.produced: set[str] = set()
        self._commands = commands
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for member in self.members:
            member.process.kill()
            member.process.wait()
        for thread in self._threads:
            thread.join(patient(DEADLINE_S))
        for member in self.members:
            for stream in (member.process.stdin, member.process.stdout):
                assert stream is not None
                with suppress(BrokenPipeError):
                    stream.close()
        if error is not None:
            for number, member in enumerate(self.members):
                print(f"--- member {number}", *member.said[-40:], sep="\n")

    def enter(self, kind: str, topic: str, instance: str = "-", protocol: str = NEW) -> NewMember:
        process = subprocess.Popen(
            [*self._commands(kind), self.bootstrap, self.group, topic, instance, protocol],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        member = NewMember(process)
        self.members.append(member)
        thread = threading.Thread(target=member.listen, daemon=True)
        thread.start()
        self._threads.append(thread)
        return member

    def close(self, member: NewMember) -> None:
        """Lets a member leave, and waits for its end."""
        assert member.process.stdin is not None
        member.process.stdin.write("close\n")
        member.process.stdin.flush()
        member.process.wait(patient(DEADLINE_S))
        self.wait(lambda: member.is_closed)
        member.owned = frozenset()

    def kill(self, member: NewMember) -> None:
        member.process.kill()
        member.process.wait()
        member.owned = frozenset()

    def wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + patient(DEADLINE_S)
        pause = threading.Event()
        while not condition():
            shown = [(sorted(each.owned), each.said[-3:]) for each in self.members]
            assert time.monotonic() < end, f"it did not come true in time: {shown}"
            pause.wait(0.02)

    def produce(self, topic: str, partitions: int) -> None:
        """Sends five records to each partition."""
        with Producer(self.bootstrap.split(",")) as producer:
            for partition in range(partitions):
                for _ in range(5):
                    value = f"{topic}/{len(self.produced)}"
                    producer.send(topic, value.encode(), partition=partition)
                    self.produced.add(value)

    def shared(self, *members: NewMember, total: int) -> bool:
        """Returns whether these members own all partitions, each a fair part."""
        names = [name for member in members for name in member.owned]
        sizes = {len(member.owned) for member in members}
        return len(names) == len(set(names)) == total and max(sizes) - min(sizes) <= 1

    def wait_for_records(self) -> None:
        self.wait(lambda: self.received() >= self.produced)

    def received(self) -> set[str]:
        return {value for member in self.members for _, value in list(member.records)}

    def repeated(self) -> list[str]:
        """Returns what was received more than once."""
        values = [value for member in self.members for _, value in list(member.records)]
        return sorted({value for value in values if values.count(value) > 1})


def commands_in(directory: Path) -> Callable[[str], Sequence[str]]:
    """Returns what starts a member of a kind. Skips if its toolchain is missing."""
    made: dict[str, Sequence[str]] = {}

    def command(kind: str) -> Sequence[str]:
        if kind not in made:
            made[kind] = _command(kind, directory)
        return made[kind]

    return command


def _command(kind: str, directory: Path) -> Sequence[str]:
    if kind == JAVA:
        path = compiled(VERSIONS[-1], directory, "newer/NewMember")
        return ["java", *java_flags("128m"), "-cp", path, "NewMember"]
    if kind == GO:
        return [go_program("new_member", directory)]
    return [sys.executable, "-u", str(Path(HERE, "python_member.py")), kind]


@pytest.fixture(scope="session")
def new_member_commands(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Sequence[str]]:
    return commands_in(tmp_path_factory.mktemp("new-members"))
