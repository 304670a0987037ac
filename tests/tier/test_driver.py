"""The driver: what it tries again, how long it waits, and what it passes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import pytest

from penstock.records.batch import Buffer
from penstock.tier.driver import Driver, Patience
from penstock.tier.errors import NotFound, OutcomeUnknown, StoreError, Throttled
from penstock.tier.requests import (
    BackOff,
    Create,
    Delete,
    Head,
    Procedure,
    Read,
    create,
    delete,
    head,
    list_all,
    read,
    read_range,
    together,
)

from .simulated_bucket import SimulatedStore

T = TypeVar("T")


class Clock:
    """Sleeps at once, and remembers for how long."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return sum(self.slept)

    def wall_ms(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class Middle:
    """A random source in the middle."""

    def bytes(self, size: int) -> bytes:
        return bytes(size)

    def below(self, bound: int) -> int:
        return bound // 2

    def uniform(self) -> float:
        return 0.5


class Failing(SimulatedStore):
    """Fails so many times first."""

    def __init__(self, error: StoreError, times: int) -> None:
        super().__init__()
        self.error = error
        self.times = times
        self.calls = 0

    async def create(self, key: str, data: Sequence[Buffer]) -> None:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        await super().create(key, data)


def run(store: SimulatedStore, procedure: Procedure[T], clock: Clock | None = None) -> T:
    patience = Patience(attempts_max=4, first_wait_s=1.0, wait_max_s=3.0)
    return asyncio.run(Driver(store, clock or Clock(), Middle(), patience).run(procedure))


def test_a_throttled_request_is_tried_again_with_longer_and_longer_waits() -> None:
    clock, store = Clock(), Failing(Throttled("slow down"), 3)
    run(store, create("a", b"x"), clock)
    assert clock.slept == [0.75, 1.5, 2.25]
    assert store.bucket.objects == {"a": b"x"}


def test_a_request_that_stays_throttled_fails_in_the_end() -> None:
    store = Failing(Throttled("slow down"), 100)
    with pytest.raises(Throttled):
        run(store, create("a", b"x"))
    assert store.calls == 4


def test_other_errors_are_for_the_procedure() -> None:
    """A write without an answer is never repeated by the driver."""
    store = Failing(OutcomeUnknown("no answer"), 1)

    def careful() -> Procedure[str]:
        try:
            yield from create("a", b"x")
        except OutcomeUnknown:
            return "unknown"
        return "done"

    assert run(store, careful()) == "unknown"
    assert store.calls == 1


class Silent(SimulatedStore):
    """Never answers, as a hung mount."""

    async def create(self, key: str, data: Sequence[Buffer]) -> None:
        await asyncio.Event().wait()

    async def get(self, key: str) -> bytes:
        await asyncio.Event().wait()
        return b""


@pytest.mark.parametrize(
    ("call", "wanted"), [(create("a", b"x"), OutcomeUnknown), (read("a"), Throttled)]
)
def test_every_request_has_a_deadline(call: Procedure[object], wanted: type[StoreError]) -> None:
    patience = Patience(attempts_max=2, request_s=0.01)
    with pytest.raises(wanted, match="no answer within"):
        asyncio.run(Driver(Silent(), Clock(), Middle(), patience).run(call))


class Forgetful(SimulatedStore):
    """The first answer to a delete is lost."""

    calls = 0

    async def delete(self, key: str) -> None:
        self.calls += 1
        await super().delete(key)
        if self.calls == 1:
            raise OutcomeUnknown("503: slow down")


def test_a_delete_is_repeated_because_names_are_never_used_again() -> None:
    """Otherwise one slow answer would end the round of a collector with thousands of deletes."""
    store = Forgetful()
    run(store, delete("a"))
    assert store.calls == 2


def test_every_kind_of_request_gets_its_result() -> None:
    def everything() -> Procedure[list[object]]:
        found: list[object] = []
        yield from create("a/1", b"12", b"345")
        yield from create("a/2", b"6")
        found.append((yield from read("a/1")))
        found.append((yield from read_range("a/1", 1, 3)))
        found.append((yield from head("a/1")).size)
        found.append([info.key for info in (yield from list_all("a/", page=1))])
        yield from delete("a/2")
        yield BackOff(0)
        results = yield from together(
            [Create("a/1", [b"x"]), Read("a/1"), Head("a/2"), Delete("a/1"), Create("b", [b"y"])]
        )
        found.append([type(each).__name__ for each in results])
        return found

    store = SimulatedStore()
    kinds = ["AlreadyExists", "bytes", "NotFound", "NoneType", "NoneType"]
    assert run(store, everything()) == [b"12345", b"234", 5, ["a/1", "a/2"], kinds]
    assert store.bucket.objects == {"b": b"y"}


def test_the_error_of_a_procedure_is_the_error_of_the_run() -> None:
    with pytest.raises(NotFound):
        run(SimulatedStore(), read("missing"))
