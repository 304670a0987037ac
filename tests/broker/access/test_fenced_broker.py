"""A broker that is not sure that it has the current ACLs answers every request, with an error that
clients retry."""

from __future__ import annotations

import pytest

from broker.access.clients import AUTHORIZER, Client, create, entry
from broker.access.test_rights import ALL_CASES, REFUSALS, codes_in, decoded, present, versions_of
from broker.harness import BrokerHarness, with_harness_of
from penstock.broker.access.authorization import fenced_code
from penstock.security.acls import AclOperation, ResourceType
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode, ProtocolError

ALICE = "User:alice"
TYPES = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.TRANSACTIONAL_ID,
    ResourceType.CLUSTER,
)
ALL_TOPICS = "metadata of all topics"
RETRIABLE = {
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_CONTROLLER,
}


@with_harness_of(kafka=AUTHORIZER)
async def test_a_fenced_broker_answers_every_api_in_every_version(harness: BrokerHarness) -> None:
    """The error has a place in each response, and none of them says that a right is missing."""
    names = await present(harness)
    await create(harness, [entry(ALICE, each, "*", AclOperation.ALL) for each in TYPES])
    alice = Client(harness, ALICE)
    membership = harness.broker.membership
    held, membership._session_timeout_s = membership._session_timeout_s, 0.0
    unanswered: list[str] = []
    for case in ALL_CASES:
        for version in versions_of(case):
            what = f"{case.label} v{version}"
            try:
                data = await alice.exchange(case.make(names, version), version)
            except ProtocolError:
                # The connection is closed: an empty list would say that there are no topics.
                if case.label != ALL_TOPICS:
                    unanswered.append(f"{what}: the connection was closed")
                continue
            except Exception as error:  # noqa: BLE001 - all that fail are listed
                unanswered.append(f"{what}: {type(error).__name__}: {error}")
                continue
            if case.label == ALL_TOPICS:
                unanswered.append(f"{what}: answered")
            codes = codes_in(decoded(case, data, version))
            if codes & REFUSALS or not (case.hidden or codes & RETRIABLE):
                unanswered.append(f"{what}: {codes}")
    membership._session_timeout_s = held
    assert unanswered == [], "\n".join(unanswered)


@pytest.mark.parametrize("name", [key.name for key in ApiKey if "GROUP" in key.name])
def test_a_fenced_broker_sends_members_of_groups_to_another_coordinator(name: str) -> None:
    """Any other error, such as NOT_CONTROLLER, would end consumers of the new protocol."""
    assert fenced_code(ApiKey[name]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
