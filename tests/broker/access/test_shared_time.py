"""Under overload, what a request does later as a task is charged to its user too."""

from __future__ import annotations

from broker.harness import BrokerHarness, with_harness
from penstock.wire.messages import CreateTopicsRequest, CreateTopicsResponse

from .test_quotas import Client


@with_harness
async def test_a_request_that_is_answered_later_is_charged_to_its_user(
    harness: BrokerHarness,
) -> None:
    client = Client(harness, "alice")
    turns = client.peer.turn._turns
    for is_active in (False, True):
        turns.is_active = is_active
        asked = CreateTopicsRequest([CreateTopicsRequest.Topic(f"t-{is_active}", 1, 1)])
        created = await client.ask(asked, 7, CreateTopicsResponse)
        assert created.topics[0].error_code == 0
        assert [*turns._debts] == (["User:alice"] if is_active else [])
