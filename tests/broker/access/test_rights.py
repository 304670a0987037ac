"""Every API, in every version that the broker serves, needs the rights of the table.

For each case of `rights_table` there are users without rights, with each set of rights that is
enough, with one right missing, and with one right denied. What a user without rights is told about
a topic, a group or a transactional id does not depend on whether it exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from broker.access.clients import AUTHORIZER, Client, create, entry
from broker.access.cluster_rights_table import CLUSTER_CASES
from broker.access.consumer_rights_table import CONSUMER_CASES
from broker.access.rights_table import CASES, CODES, OPEN_APIS, Case, G, Names, Right, T, X
from broker.access.share_rights_table import SHARE_CASES
from broker.access.token_rights_table import OPEN_VERSIONS, TOKEN_CASES
from broker.harness import TIMEOUT_S, BrokerHarness, open_harness
from penstock.broker.handled_apis import CONSUMER_GROUP_APIS, HANDLED, SHARE_GROUP_APIS
from penstock.security.acls import PermissionType, ResourceType
from penstock.testing.slowness import patient
from penstock.wire.api import SUPPORTED, ApiKey
from penstock.wire.codec import decode_response, response_class
from penstock.wire.messages import (
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from penstock.wire.messages.base import Response, Struct

ALL_CASES = (*CASES, *CLUSTER_CASES, *TOKEN_CASES, *CONSUMER_CASES, *SHARE_CASES)
REFUSALS = frozenset(CODES.values())
ABSENT = Names("t-missing", "g-missing", "x-missing")
NAMED = {"topic": T, "group": G, "transactional_id": X}
LEFT_OUT = 0
"""The code of a right without which a part of the response is left out."""


@dataclass(frozen=True)
class User:
    """A user of a case: its ACLs, and the error that it must get, or None."""

    name: str
    allowed: tuple[Right, ...]
    denied: tuple[Right, ...]
    refusal: int | None
    missing: ResourceType | None = None
    """The type of the resource that the user has no right to, if it has others."""

    @property
    def principal(self) -> str:
        return f"User:{self.name}"

    def acls(self, names: Names) -> Iterator[CreateAclsRequest.Creation]:
        for permission, rights in (
            (PermissionType.ALLOW, self.allowed),
            (PermissionType.DENY, self.denied),
        ):
            for right in rights:
                kind = right.resource_type
                yield entry(self.principal, kind, names.of(kind), right.operation, permission)


def users_of(case: Case) -> Iterator[User]:
    first = case.needs[0]
    yield User("nobody", (), (), first[0].refusal)
    for number, rights in enumerate(case.needs):
        yield User(f"enough-{number}", rights, (), None)
    for number, right in enumerate(first):
        others = tuple(each for each in first if each is not right)
        yield User(f"without-{number}", others, (), right.refusal, right.resource_type)
        denied = (right,)
        yield User(f"denied-{number}", first, denied, right.refusal, right.resource_type)


def versions_of(case: Case) -> range:
    served = SUPPORTED[case.api].served
    return case.versions or range(served.first, served.last + 1)


def codes_in(message: object) -> set[int]:
    """Returns all error codes in a response, at any depth."""
    if isinstance(message, list):
        return set().union(*map(codes_in, message))
    if not isinstance(message, Struct):
        return set()
    found: set[int] = set()
    for name in message.__slots__:
        value = getattr(message, name)
        if name.endswith("error_code"):
            # Kafka creates the topic and hides its configs: this is not a refusal.
            found |= set() if name == "topic_config_error_code" else {value}
        else:
            found |= codes_in(value)
    return found


def mentions(message: object, *texts: str) -> bool:
    """Returns whether a response has one of the texts in it, at any depth."""
    if isinstance(message, str):
        return message in texts
    if isinstance(message, list):
        return any(mentions(each, *texts) for each in message)
    if not isinstance(message, Struct):
        return False
    return any(mentions(getattr(message, name), *texts) for name in message.__slots__)


def decoded(case: Case, data: bytes, version: int) -> Response:
    return decode_response(response_class(case.api), memoryview(bytearray(data)), version)[1]


async def present(harness: BrokerHarness) -> Names:
    """Makes the topic, the group and the transactional id, and returns their names."""
    topic_id = await harness.create("t-present")
    names = Names("t-present", "g-present", "x-present", topic_id)
    await harness.produce(names.topic, [b"a"])
    for key_type, key in enumerate((names.group, names.transactional_id)):
        await found(harness, key, key_type)
    part = OffsetCommitRequest.Partition(0, 1)
    topic = OffsetCommitRequest.Topic(names.topic, partitions=[part])
    commit = OffsetCommitRequest(names.group, topics=[topic])
    while True:
        answer = await harness.ask(commit, 8, OffsetCommitResponse)
        if not answer.topics[0].partitions[0].error_code:
            break
        await asyncio.sleep(0.002)
    init = InitProducerIdRequest(names.transactional_id, 10_000)
    while (made := await harness.ask(init, 4, InitProducerIdResponse)).error_code:  # noqa: ASYNC110 - it loads
        await asyncio.sleep(0.002)
    producer = made.producer_id, made.producer_epoch
    epoch = harness.broker.membership.broker_epoch
    owner = Client(harness, f"User:{names.topic}")
    create_token = CreateDelegationTokenRequest(max_lifetime_ms=-1)
    token = await owner.ask(create_token, 3, CreateDelegationTokenResponse)
    assert token.error_code == 0
    return replace(names, producer=producer, broker_epoch=epoch, token_id=token.token_id)


async def found(harness: BrokerHarness, key: str, key_type: int) -> None:
    request = FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
    while True:
        answer = await harness.ask(request, 4, FindCoordinatorResponse)
        if not answer.coordinators[0].error_code:
            return
        await asyncio.sleep(0.002)


def acls_of(users: list[User], names: Names) -> list[CreateAclsRequest.Creation]:
    """Returns the ACLs of the users. They have the same rights on what does not exist."""
    acls = [acl for user in users for acl in user.acls(names)]
    others = [acl for user in users for acl in user.acls(ABSENT)]
    return acls + [acl for acl in others if acl.resource_type != ResourceType.CLUSTER]


async def check(case: Case, harness: BrokerHarness) -> None:
    names = await present(harness)
    users = list(users_of(case))
    await create(harness, acls_of(users, names))
    clients = {user: Client(harness, user.principal) for user in users}
    refused = [user for user in users if user.refusal is not None]
    # Those who may do it come last: they may delete what the others are asking about.
    for user in (*refused, *(user for user in users if user.refusal is None)):
        for version in versions_of(case):
            data = await clients[user].exchange(case.make(names, version), version)
            verify(case, user, names, decoded(case, data, version), version)
            if user.refusal is not None and not case.by_id and not case.hidden:
                absent = without(names, user.missing)
                other = await clients[user].exchange(case.make(absent, version), version)
                assert without_names(other, names) == without_names(data, names), (user, version)


def without(names: Names, missing: ResourceType | None) -> Names:
    """Returns the names with one that does not exist: that of the type, or all."""
    absent = replace(ABSENT, producer=names.producer)
    if missing is None:
        return absent
    kept = {field: getattr(names, field) for field, kind in NAMED.items() if kind != missing}
    return replace(absent, **kept)


def verify(case: Case, user: User, names: Names, response: Response, version: int) -> None:
    told = (user.name, version, response)
    refusals = codes_in(response) & REFUSALS
    if user.refusal is None:
        assert not refusals, told
    elif not case.hidden:
        assert refusals == {user.refusal} - {LEFT_OUT}, told
    every = (names.topic, names.group, names.transactional_id)
    if case.hidden:
        assert mentions(response, *every) == (user.refusal is None), told
        assert not codes_in(response) - {0}, told
    if user.refusal == LEFT_OUT:
        assert not mentions(response, names.topic), told


def without_names(data: bytes, names: Names) -> bytes:
    """Returns a response without its correlation id, as if all names existed."""
    data = data[4:]
    for field in NAMED:
        data = data.replace(getattr(ABSENT, field).encode(), getattr(names, field).encode())
    return data


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.label.replace(" ", "-"))
def test_an_api_needs_exactly_the_rights_of_the_table(case: Case, tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            open_harness(tmp_path, 1, AUTHORIZER) as harness,
        ):
            await check(case, harness)

    asyncio.run(run())


def test_the_table_has_every_api_and_version_that_the_broker_serves() -> None:
    listed: dict[ApiKey, set[int]] = {api: {*each} for api, each in OPEN_VERSIONS.items()}
    for case in ALL_CASES:
        listed.setdefault(case.api, set()).update(versions_of(case))
    for api in {*HANDLED, *CONSUMER_GROUP_APIS, *SHARE_GROUP_APIS} - set(OPEN_APIS):
        served = SUPPORTED[api].served
        assert listed[api] == set(range(served.first, served.last + 1)), api
    assert not set(OPEN_APIS) & set(listed)
