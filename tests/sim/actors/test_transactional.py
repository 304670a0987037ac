"""The transactional producers of a workload send only ends that a coordinator has decided."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from penstock.client.errors import ClientError
from penstock.client.producing.transactions import Transaction, Transactions
from penstock.sim.actors.transactional import WantsAbort, was_aborted


class _Transactions:
    """The part of the library that a block of a transaction calls."""

    def __init__(self, abort_error: ClientError | None) -> None:
        self._abort_error = abort_error

    def begin(self) -> None:
        pass

    async def abort(self) -> None:
        if self._abort_error is not None:
            raise self._abort_error


@pytest.mark.parametrize("abort_error", [None, ClientError("the producer was fenced")])
def test_an_abort_counts_as_decided_only_if_the_library_could_abort(
    abort_error: ClientError | None,
) -> None:
    """Seed 2439: a fenced producer wanted to abort. The marker that it sent "once more" was of a
    decision that no coordinator had made, and ended the transaction of the newer producer."""

    async def run() -> WantsAbort:
        fake = cast(Transactions, _Transactions(abort_error))
        with pytest.raises(WantsAbort) as wanted:
            async with Transaction(lambda: fake):
                raise WantsAbort
        return wanted.value

    assert was_aborted(asyncio.run(run())) == (abort_error is None)
