"""The probe: each way in which a store can be unsuitable is reported, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.tier.errors import AlreadyExists, NotFound, OutcomeUnknown, Refused, Throttled
from penstock.tier.object_store import ObjectInfo
from penstock.tier.probe import CREATES, LISTINGS, ROUNDS, probe
from penstock.tier.requests import (
    BackOff,
    Create,
    Delete,
    Head,
    List,
    ReadRange,
    Request,
    Together,
)

from .procedure_runner import Runner

Fault = Callable[[Runner, Request], object]


def probed(fault: Fault) -> Runner:
    runner = Runner()
    runner.run(probe(runner.draw), lambda request: fault(runner, request))
    return runner


def test_a_sound_store_is_accepted_and_left_empty() -> None:
    runner = probed(lambda runner, request: runner.answer(request))
    assert runner.bucket.objects == {}
    races = [each for each in runner.asked if isinstance(each, Together)]
    assert [len(each.requests) for each in races] == [CREATES] * ROUNDS


def _overwrites(runner: Runner, request: Request) -> object:
    if isinstance(request, Create):
        runner.bucket.put(request.key, b"".join(request.data))
        return None
    return runner.answer(request)


def _overwrites_and_says_no(runner: Runner, request: Request) -> object:
    if isinstance(request, Create) and request.key in runner.bucket.objects:
        runner.bucket.put(request.key, b"".join(request.data))
        raise AlreadyExists("no")
    return runner.answer(request)


def _ignores_ranges(runner: Runner, request: Request) -> object:
    if isinstance(request, ReadRange):
        return runner.bucket.objects[request.key]
    return runner.answer(request)


def _wrong_size(runner: Runner, request: Request) -> object:
    found = runner.answer(request)
    return ObjectInfo(request.key, 5, 0) if isinstance(request, Head) else found


def _lists_nothing(runner: Runner, request: Request) -> object:
    return [] if isinstance(request, List) else runner.answer(request)


def _several_win(runner: Runner, request: Request) -> object:
    if isinstance(request, Together):
        runner.answer(request)
        return [None, None, *[AlreadyExists("no")] * (CREATES - 2)]
    return runner.answer(request)


def _another_one_is_stored(runner: Runner, request: Request) -> object:
    if isinstance(request, Together):
        runner.answer(request)
        return [AlreadyExists("no"), None, *[AlreadyExists("no")] * (CREATES - 2)]
    return runner.answer(request)


def _keeps_deleted(runner: Runner, request: Request) -> object:
    return None if isinstance(request, Delete) else runner.answer(request)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (_overwrites, "ignores create-if-absent"),
        (_overwrites_and_says_no, "it overwrote the object"),
        (_ignores_ranges, "ignores ranges"),
        (_wrong_size, "reports 5 bytes"),
        (_lists_nothing, "a listing shows 0 objects instead of one"),
        (_several_win, "2 of 16 concurrent creates"),
        (_another_one_is_stored, "stored the data of another"),
        (_keeps_deleted, "still returns an object that was deleted"),
    ],
)
def test_an_unsuitable_store_is_refused_with_the_reason(fault: Fault, reason: str) -> None:
    runner = Runner()
    with pytest.raises(Refused, match=reason):
        runner.run(probe(runner.draw), lambda request: fault(runner, request))
    assert fault is _keeps_deleted or runner.bucket.objects == {}


def test_a_listing_may_be_late() -> None:
    listings = 0

    def late(runner: Runner, request: Request) -> object:
        nonlocal listings
        if isinstance(request, List):
            listings += 1
            return runner.answer(request) if listings == LISTINGS else []
        return runner.answer(request)

    waits = [each for each in probed(late).asked if isinstance(each, BackOff)]
    assert len(waits) == LISTINGS - 1


@pytest.mark.parametrize("error", [OutcomeUnknown("no answer"), Throttled("slow down")])
def test_a_lost_answer_in_a_race_proves_nothing(error: Exception) -> None:
    """The winner may be the one without an answer. The race is repeated."""
    races = 0

    def lossy(runner: Runner, request: Request) -> object:
        nonlocal races
        found = runner.answer(request)
        if isinstance(request, Together):
            assert isinstance(found, list)
            races += 1
            return [error if each is None and races < 4 else each for each in found]
        return found

    assert probed(lossy).bucket.objects == {}
    assert races == ROUNDS + 3


def test_a_store_that_never_tells_the_winner_is_not_accepted() -> None:
    """Nothing is known about it. What the probe has written is deleted."""
    runner = Runner()

    def conflict(request: Request) -> object:
        found = runner.answer(request)
        return [AlreadyExists("409")] * CREATES if isinstance(request, Together) else found

    with pytest.raises(Throttled, match="only 0 of"):
        runner.run(probe(runner.draw), conflict)
    assert runner.bucket.objects == {}


def test_a_store_that_remembers_what_was_missing_is_refused() -> None:
    runner = Runner()
    missing: set[str] = set()

    def caching(request: Request) -> object:
        if isinstance(request, Head) and request.key not in runner.bucket.objects:
            missing.add(request.key)
        if isinstance(request, Head) and request.key in missing:
            raise NotFound(request.key)
        return runner.answer(request)

    with pytest.raises(Refused, match="lookupcache"):
        runner.run(probe(runner.draw), caching)


def test_a_store_that_refuses_everything_is_reported_with_its_own_reason() -> None:
    def refuse(runner: Runner, request: Request) -> object:
        raise Refused("403: no permission")

    with pytest.raises(Refused, match="no permission"):
        probed(refuse)
