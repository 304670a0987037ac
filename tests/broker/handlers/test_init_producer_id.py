"""InitProducerId for producers without transactions."""

from __future__ import annotations

import pytest

from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.stores.errors import StoreUnavailable
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import InitProducerIdRequest, InitProducerIdResponse


async def init(
    harness: BrokerHarness,
    version: int,
    producer_id: int = -1,
    epoch: int = -1,
    transactional_id: str | None = None,
    broker: int = 0,
) -> tuple[int, int, int]:
    request = InitProducerIdRequest(transactional_id, 1_000, producer_id, epoch)
    response = await harness.ask(request, version, InitProducerIdResponse, broker=broker)
    return response.error_code, response.producer_id, response.producer_epoch


@with_harness_of(brokers=2)
async def test_brokers_hand_out_unique_producer_ids(harness: BrokerHarness) -> None:
    """Each with epoch 0. A producer that already has an id gets a new one."""
    seen = set()
    for broker in (0, 1):
        for version in range(6):
            had = (7, 3) if version >= 3 else (-1, -1)
            for given in ((-1, -1), had):
                code, producer_id, epoch = await init(harness, version, *given, broker=broker)
                assert (code, epoch) == (0, 0)
                seen.add(producer_id)
    assert len(seen) == 24


@with_harness
async def test_a_producer_id_without_an_epoch_is_refused(harness: BrokerHarness) -> None:
    """So are an epoch without an id, and an empty transactional id. An error response has id and
    epoch -1.
    """
    refused = (ErrorCode.INVALID_REQUEST, -1, -1)
    for version in (3, 4, 5):
        for producer_id, epoch in ((5, -1), (-1, 5), (-2, -1), (0, -1), (-1, 0)):
            assert await init(harness, version, producer_id, epoch) == refused
    for version in range(6):
        assert await init(harness, version, transactional_id="") == refused
        code, *rest = await init(harness, version, transactional_id="t")
        assert (code, rest) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [-1, -1])


@with_harness
async def test_without_the_store_no_producer_id_is_handed_out(harness: BrokerHarness) -> None:
    """The error is retriable, and the response does not contain id 0."""

    async def fail(*_: object) -> None:
        raise StoreUnavailable("no store")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.broker.controller, "commit_own", fail)
        assert await init(harness, 4) == (ErrorCode.REQUEST_TIMED_OUT, -1, -1)
    code, producer_id, epoch = await init(harness, 4)
    assert (code, epoch) == (0, 0)
    assert producer_id >= 0
