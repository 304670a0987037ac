"""Decisions on an image that is out of date: the store has the last word."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.commits import Commits
from penstock.metadata.quotas import alter_quotas
from penstock.security.quotas import PRODUCER_BYTE_RATE, USER, QuotaAlteration
from penstock.sim.loop import START_S, SimLoop
from penstock.sim.store import SimStore, StoreConfig, StoreModel
from penstock.stores.errors import StoreError
from penstock.wire.errors import ErrorCode

ALICE = ((USER, "alice"),)
SET = QuotaAlteration(ALICE, ((PRODUCER_BYTE_RATE, 100.0),))
REMOVE = QuotaAlteration(ALICE, ((PRODUCER_BYTE_RATE, None),))


class Side:
    """The view and the commits of one broker."""

    def __init__(self, model: StoreModel, name: str) -> None:
        self.view = ClusterView(SimStore(model, name))
        self.commits = Commits(SimStore(model, name), self.view)

    async def alter(self, change: QuotaAlteration) -> None:
        (result,) = await self.commits.commit(
            lambda image: alter_quotas(image, entries=[change], validate_only=False)
        )
        assert result.code == ErrorCode.NONE


def run_case(act: Callable[[StoreModel, Side, Side], Awaitable[None]]) -> None:
    loop = SimLoop(Random(1))
    loop.horizon_s = START_S + 1000
    model = StoreModel(loop, StoreConfig(), Random(2))

    async def main() -> None:
        ahead, behind = Side(model, "ahead"), Side(model, "behind")
        await behind.view.load()
        following = asyncio.ensure_future(ahead.view.follow())
        await act(model, ahead, behind)
        following.cancel()

    try:
        loop.run(main())
        assert loop.unexpected == []
    finally:
        loop.close()


def test_a_decision_that_changes_nothing_counts_only_on_a_current_image() -> None:
    """The quota was set through another broker a moment ago: deleting it must delete it."""

    async def act(_: StoreModel, ahead: Side, behind: Side) -> None:
        await ahead.alter(SET)
        assert not behind.view.image.quotas.entities
        await behind.alter(REMOVE)
        await ahead.view.catch_up()
        assert not ahead.view.image.quotas.entities

    run_case(act)


def test_a_decision_that_changes_nothing_fails_if_the_store_does_not_answer() -> None:
    """Whether there is something to change is unknown then."""

    async def act(model: StoreModel, ahead: Side, behind: Side) -> None:
        await ahead.alter(SET)
        model.set_outage(True)
        with pytest.raises((StoreError, TimeoutError)):
            await behind.alter(REMOVE)

    run_case(act)
