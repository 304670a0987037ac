"""AlterClientQuotas and DescribeClientQuotas."""

from __future__ import annotations

from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.broker.handlers.alter_client_quotas import ENTITIES_PER_COMMIT
from penstock.ports import Slicing
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

Entity = AlterClientQuotasRequest.Entity
Entry = AlterClientQuotasRequest.Entry
Op = AlterClientQuotasRequest.Op
Component = DescribeClientQuotasRequest.Component
RATE = "producer_byte_rate"
Described = list[tuple[list[tuple[str, str | None]], dict[str, float]]]


async def described(
    harness: BrokerHarness, *components: Component, strict: bool = False, version: int = 1
) -> Described:
    request = DescribeClientQuotasRequest(list(components), strict)
    response = await harness.ask(request, version, DescribeClientQuotasResponse)
    assert response.error_code == 0, response.error_message
    return [
        (
            [(each.entity_type, each.entity_name) for each in entry.entity],
            {each.key: each.value for each in entry.values},
        )
        for entry in response.entries or ()
    ]


async def altered(
    harness: BrokerHarness, *entries: Entry, validate_only: bool = False, version: int = 1
) -> list[int]:
    request = AlterClientQuotasRequest(list(entries), validate_only)
    response = await harness.ask(request, version, AlterClientQuotasResponse)
    assert [
        [(each.entity_type, each.entity_name) for each in answer.entity]
        for answer in (response.entries)
    ] == [[(each.entity_type, each.entity_name) for each in entry.entity] for entry in entries]
    return [each.error_code for each in response.entries]


def user(name: str | None, rate: float = 1000.0) -> Entry:
    return Entry([Entity("user", name)], [Op(RATE, rate)])


@with_harness
async def test_quotas_are_set_described_changed_and_removed(harness: BrokerHarness) -> None:
    for version in (0, 1):
        assert await described(harness, version=version) == []
        pair = [Entity("client-id", "app"), Entity("user", "bob")]
        both = Entry(pair, [Op(RATE, 10.0), Op("request_percentage", 12.5)])
        assert await altered(harness, user("bob"), user(None), both, version=version) == [0, 0, 0]
        limits = {RATE: 10.0, "request_percentage": 12.5}
        names: list[tuple[str, str | None]] = [("user", "bob"), ("client-id", "app")]
        assert await described(harness, Component("user", 0, "bob"), version=version) == [
            ([("user", "bob")], {RATE: 1000.0}),
            (names, limits),
        ]
        exact = Component("user", 0, "bob"), Component("client-id", 2, None)
        assert await described(harness, *exact, version=version) == [(names, limits)]
        default = Component("user", 1, None)
        assert await described(harness, default, strict=True) == [
            ([("user", None)], {RATE: 1000.0})
        ]
        removals = [
            Entry([Entity("user", "bob")], [Op(RATE, 0.0, True)]),
            Entry([Entity("user", None)], [Op(RATE, 0.0, True)]),
            Entry(pair, [Op(RATE, 0.0, True), Op("request_percentage", 0.0, True)]),
        ]
        assert await altered(harness, *removals, version=version) == [0, 0, 0]


@with_harness
async def test_validation_sets_nothing(harness: BrokerHarness) -> None:
    codes = await altered(harness, user("bob"), user("eve", -1.0), validate_only=True)
    assert codes == [0, ErrorCode.INVALID_REQUEST]
    assert await described(harness) == []


@with_harness
async def test_an_invalid_filter_is_refused(harness: BrokerHarness) -> None:
    request = DescribeClientQuotasRequest([Component("planet", 2, None)])
    response = await harness.ask(request, 1, DescribeClientQuotasResponse)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "planet" in (response.error_message or "")


@with_harness
async def test_a_limit_that_is_no_positive_whole_number_is_refused(harness: BrokerHarness) -> None:
    for rate in (float("nan"), float("inf"), -1.0, 0.0, 1.5):
        assert await altered(harness, user("bob", rate)) == [ErrorCode.INVALID_REQUEST], rate
    assert await described(harness) == []


@with_harness_of(slicing=Slicing(elements=10))
async def test_a_large_request_changes_all_its_entities(harness: BrokerHarness) -> None:
    """An entity that is named in two portions is refused in both places."""
    count = 2 * ENTITIES_PER_COMMIT + 5
    entries = [user(f"u{number:03}", 1.0 + number) for number in range(count)]
    codes = await altered(harness, *entries, user("u000"))
    twice = ErrorCode.INVALID_REQUEST
    assert codes == [twice, *[0] * (count - 1), twice]
    found = await described(harness, Component("user", 2, None))
    assert [limits[RATE] for _, limits in found] == [1.0 + each for each in range(1, count)]
