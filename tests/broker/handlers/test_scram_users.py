"""AlterUserScramCredentials and DescribeUserScramCredentials."""

from __future__ import annotations

from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.broker.handlers.alter_user_scram_credentials import USERS_PER_COMMIT
from penstock.metadata.image import Changed
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

Upsertion = AlterUserScramCredentialsRequest.Upsertion
Deletion = AlterUserScramCredentialsRequest.Deletion
SALT = b"sixteen bytes !!"


async def described(
    harness: BrokerHarness, *users: str
) -> list[tuple[str, int, list[tuple[int, int]]]]:
    asked = [DescribeUserScramCredentialsRequest.User(each) for each in users] or None
    request = DescribeUserScramCredentialsRequest(asked)
    response = await harness.ask(request, 0, DescribeUserScramCredentialsResponse)
    assert response.error_code == 0
    return [
        (
            each.user,
            each.error_code,
            [(info.mechanism, info.iterations) for info in each.credential_infos],
        )
        for each in response.results
    ]


async def altered(
    harness: BrokerHarness, deletions: list[Deletion], upsertions: list[Upsertion]
) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(deletions, upsertions)
    response = await harness.ask(request, 0, AlterUserScramCredentialsResponse)
    return {each.user: each.error_code for each in response.results}


@with_harness
async def test_users_are_described_without_salts_and_keys(harness: BrokerHarness) -> None:
    assert await described(harness) == []
    codes = await altered(
        harness,
        [Deletion("ann", 1)],
        [Upsertion("bob", 1, 4096, SALT, bytes(32)), Upsertion("eve", 9, 4096, SALT, bytes(32))],
    )
    assert codes == {
        "ann": ErrorCode.RESOURCE_NOT_FOUND,
        "bob": ErrorCode.NONE,
        "eve": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    }
    await altered(harness, [], [Upsertion("bob", 2, 8192, SALT, bytes(64))])
    bob = ("bob", 0, [(1, 4096), (2, 8192)])
    assert await described(harness) == [bob]
    assert await described(harness, "bob", "ann") == [
        bob,
        ("ann", ErrorCode.RESOURCE_NOT_FOUND, []),
    ]
    assert await described(harness, "ann", "ann") == [("ann", ErrorCode.DUPLICATE_RESOURCE, [])]


@with_harness
async def test_a_user_that_is_named_twice_is_not_changed(harness: BrokerHarness) -> None:
    twice = [Upsertion("bob", mechanism, 4096, SALT, bytes(32 * mechanism)) for mechanism in (1, 2)]
    codes = await altered(harness, [], [*twice, Upsertion("ann", 1, 4096, SALT, bytes(32))])
    assert codes == {"bob": ErrorCode.DUPLICATE_RESOURCE, "ann": ErrorCode.NONE}
    assert [user for user, _, _ in await described(harness)] == ["ann"]


@with_harness_of(brokers=2)
async def test_a_broker_with_an_old_image_deletes_a_user_that_was_added_since(
    harness: BrokerHarness,
) -> None:
    """It must not say that there is no such user: the password would stay in force."""
    late = harness.brokers[1].cluster
    late.image.apply = lambda *_: Changed()  # type: ignore[method-assign] # Its watch lags.
    await altered(harness, [], [Upsertion("bob", 1, 4096, SALT, bytes(32))])
    request = AlterUserScramCredentialsRequest([Deletion("bob", 1)])
    response = await harness.ask(request, 0, AlterUserScramCredentialsResponse, broker=1)
    assert [each.error_code for each in response.results] == [ErrorCode.NONE]
    assert await described(harness) == []


@with_harness
async def test_many_users_are_changed_in_several_commits(harness: BrokerHarness) -> None:
    names = [f"user-{number:03d}" for number in range(2 * USERS_PER_COMMIT + 1)]
    upsertions = [Upsertion(name, 1, 4096, SALT, bytes(32)) for name in names]
    assert {*(await altered(harness, [], upsertions)).items()} == {(name, 0) for name in names}
    assert [user for user, _, _ in await described(harness)] == names
