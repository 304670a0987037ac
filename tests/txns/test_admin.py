"""DescribeTransactions, ListTransactions, and the expiration of unused transactional ids."""

from __future__ import annotations

import pytest

from penstock.txns.admin import unknown_states
from penstock.txns.config import TransactionConfig
from penstock.txns.formats import read_record
from penstock.txns.transaction import Producer, State
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import DescribeTransactionsResponse, ListTransactionsRequest

from .world import EPOCH_MS, World

WEEK_MS = 604_800_000


def several() -> World:
    """Returns a world with an empty id, one open since 0, and one decided and open since 1000."""
    world = World()
    world.started("empty")
    world.add("open", world.started("open"), "t-1", "t-0", "s-0")
    world.advance(1000)
    prepared = world.started("prepared-1")
    world.add("prepared-1", prepared, "t-0")
    world.holds_markers = True
    world.end("prepared-1", prepared, commit=True)
    world.advance(1000)
    return world


def listed(world: World, **filters: object) -> list[str]:
    request = ListTransactionsRequest(**filters)  # type: ignore[arg-type]
    found = world.shard.list_transactions(request, world.now)
    return sorted(each.transactional_id for each in found)


def test_a_description_contains_all_fields() -> None:
    """State, producer, times and partitions by topic."""
    assert several().shard.describe("open") == DescribeTransactionsResponse.Transaction(
        0, "open", "Ongoing", 60_000, EPOCH_MS, 1001, 0,
        [
            DescribeTransactionsResponse.Topic("s", [0]),
            DescribeTransactionsResponse.Topic("t", [0, 1]),
        ],
    )  # fmt: skip


def test_an_unknown_id_is_an_error() -> None:
    """TRANSACTIONAL_ID_NOT_FOUND for an unknown id, INVALID_REQUEST for an empty one."""
    shard = several().shard
    assert shard.describe("nobody").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert shard.describe("").error_code == ErrorCode.INVALID_REQUEST


def test_every_filter_narrows_the_list() -> None:
    """Filters by state, producer, duration and pattern. All that are given apply."""
    world = several()
    assert listed(world) == ["empty", "open", "prepared-1"]
    assert listed(world, state_filters=["Ongoing", "Empty"]) == ["empty", "open"]
    assert listed(world, state_filters=["Bogus"]) == []
    assert listed(world, producer_id_filters=[1001, 5]) == ["open"]
    assert listed(world, duration_filter=1500) == ["open"]
    assert listed(world, duration_filter=500) == ["open", "prepared-1"]
    assert listed(world, transactional_id_pattern="prep.*") == ["prepared-1"]
    assert listed(world, transactional_id_pattern="") == listed(world)
    assert listed(world, state_filters=["Ongoing"], transactional_id_pattern="p.*") == []
    with pytest.raises(KafkaError):
        listed(world, transactional_id_pattern="(")


def test_unknown_states_are_reported() -> None:
    """So that a typing error does not look like an empty list."""
    request = ListTransactionsRequest(["Ongoing", "Bogus", "PrepareCommit"])
    assert unknown_states(request) == ["Bogus"]


def test_an_unused_id_expires() -> None:
    """A week after its last change. An id never expires while a transaction is open or being
    ended."""
    world = several()
    world.advance(WEEK_MS - 10_000)
    assert "empty" in listed(world)
    world.advance(3_600_000)
    assert "empty" not in listed(world)
    assert "prepared-1" in listed(world)
    assert read_record(*world.log[-1]) is not None
    world.fail_over()
    assert "empty" not in listed(world)


def test_a_producer_whose_id_expired_starts_over() -> None:
    """The coordinator no longer knows the producer id and epoch that it names."""
    world = World()
    producer = world.started("a")
    world.advance(WEEK_MS + 3_600_000)
    assert world.add("a", producer, "t-0") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.init("a", producer) == Producer(1001, 0)


def test_an_id_that_is_expiring_is_not_given_out() -> None:
    """Until its tombstone is in the log. If the log refuses the tombstone, the id is as before."""
    world = World(TransactionConfig(id_expiration_ms=1000, id_expiration_check_interval_ms=1000))
    producer = world.started("a")
    world.holds_log = True
    world.advance(1000)
    assert len(world.waiting) == 1
    assert world.init("a", producer) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    world.settle_one()
    world.fails_log, world.holds_log = None, False
    assert world.init("a", producer) == Producer(1000, 1)
    world.shard.verify()


def test_tombstones_are_written_in_batches_that_fit() -> None:
    """Ten thousand ids may expire at the same time."""
    world = World(TransactionConfig(id_expiration_ms=1000, id_expiration_check_interval_ms=1000))
    world.batch_bytes_max = 300
    for index in range(20):
        world.started(f"id-{index}")
    before = len(world.batches)
    world.advance(1000)
    parts = world.batches[before:]
    assert len(parts) > 1
    assert sum(len(part) for part in parts) == 20
    assert listed(world) == []


@pytest.mark.parametrize(
    ("field", "value"), [("timeout_max_ms", 0), ("retry_ms", -1), ("transaction_version", -1)]
)
def test_settings_are_checked(field: str, value: int) -> None:
    """The error names the setting."""
    with pytest.raises(ValueError, match=field):
        TransactionConfig(**{field: value})


def test_state_names_are_kafkas() -> None:
    """Kafka's tools print these names."""
    assert [state.title for state in State] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
    ]
