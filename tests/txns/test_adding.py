"""AddPartitionsToTxn and AddOffsetsToTxn: which producers may add, which must wait, what is
written."""

from __future__ import annotations

from penstock.txns.adding import transaction_of
from penstock.txns.formats import read_record
from penstock.txns.transaction import Producer, State, Transaction
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import AddPartitionsToTxnRequest

from .world import NONE, OFFSETS, World, at

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE


def last_written(world: World) -> Transaction:
    entry = read_record(*world.log[-1])
    assert entry is not None
    assert entry.transaction is not None
    return entry.transaction


def test_the_first_partition_opens_the_transaction() -> None:
    """It is in the log before the response, with its start time."""
    world = World()
    producer = world.started("a")
    world.advance(5)
    assert world.add("a", producer, "t-0", "t-1", "s-0") is NONE
    written = last_written(world)
    assert written.state is State.ONGOING
    assert written.partitions == {at("t-0"), at("t-1"), at("s-0")}
    assert written.start_ms == world.now.wall_ms
    world.advance(5)
    assert world.add("a", producer, "t-2") is NONE
    assert last_written(world).start_ms == world.now.wall_ms - 5


def test_a_partition_that_was_added_before_is_not_written_again() -> None:
    """So repeating a request costs nothing."""
    world = World()
    producer = world.started("a")
    world.add("a", producer, "t-0", "t-1")
    written = len(world.log)
    assert world.add("a", producer, "t-1") is NONE
    assert len(world.log) == written


def test_additions_by_other_producers_are_refused() -> None:
    """An unknown transactional id, another producer id, another epoch, an empty id."""
    world = World()
    producer = world.started("a")
    assert world.add("b", producer, "t-0") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.add("a", Producer(5, 0), "t-0") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.add("a", Producer(1000, 1), "t-0") is FENCED
    assert world.add("a", Producer(1000, 1), "t-0", version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.add("", producer, "t-0") is ErrorCode.INVALID_REQUEST


def test_additions_may_overlap() -> None:
    """Many leaders ask at the same time (KIP-890). No request waits, and each record contains all
    partitions added before it."""
    world = World()
    producer = world.started("a")
    world.holds_log = True
    tokens = [world.send_add("a", producer, [f"t-{index}"], version=5) for index in range(3)]
    assert not any(token in world.replies for token in tokens)
    for index, token in enumerate(tokens):
        world.settle_one()
        assert world.added(token) == {at(f"t-{index}"): NONE}
    assert world.transaction("a").partitions == {at("t-0"), at("t-1"), at("t-2")}
    world.holds_log = False
    assert world.end("a", producer, commit=True) == Producer(1000, 1)


def test_a_failed_addition_does_not_affect_another() -> None:
    """The log refuses the first of two and accepts the second. The second counts."""
    world = World()
    producer = world.started("a")
    world.holds_log = True
    first = world.send_add("a", producer, ["t-0"])
    second = world.send_add("a", producer, ["t-1"])
    world.fails_log = ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.settle_one()
    world.fails_log = None
    world.settle_one()
    assert world.added(first) == {at("t-0"): ErrorCode.NOT_COORDINATOR}
    assert world.added(second) == {at("t-1"): NONE}
    assert at("t-1") in world.transaction("a").partitions
    world.shard.verify()


def test_partitions_of_a_large_request_are_added_to_one_transaction() -> None:
    """Partitions are refused if the transaction of those before them has ended: nobody would end
    another one. That holds even if the next transaction has some of them."""
    world = World()
    producer = world.started("a")

    def add(*partitions: str, beside: tuple[str, ...]) -> ErrorCode:
        token = world.send_add("a", producer, partitions, only_beside=beside)
        return world.added(token)[at(partitions[0])]

    world.add("a", producer, "t-0")
    assert add("t-1", beside=("t-0",)) is NONE
    world.holds_markers = True
    world.end("a", producer, commit=True, version=3)
    assert add("t-2", beside=("t-0", "t-1")) is CONCURRENT
    world.mark_one()
    assert world.transaction("a").state is State.COMPLETE_COMMIT
    assert add("t-2", beside=("t-0", "t-1")) is CONCURRENT
    world.add("a", producer, "t-0")
    assert add("t-2", beside=("t-0", "t-1")) is CONCURRENT
    assert world.transaction("a").partitions == {at("t-0")}


def test_nothing_is_added_while_the_previous_transaction_ends() -> None:
    """This holds also for the producer that has the next epoch, until all markers are written."""
    world = World()
    producer = world.started("a")
    world.add("a", producer, "t-0")
    world.holds_markers = True
    after = world.end("a", producer, commit=True)
    assert after == Producer(1000, 1)
    assert world.add("a", Producer(1000, 1), "t-0", version=5) is CONCURRENT
    assert world.add_offsets("a", Producer(1000, 1)) is CONCURRENT
    world.mark_one()
    assert world.add("a", Producer(1000, 1), "t-0", version=5) is NONE


def test_verification_changes_nothing() -> None:
    """A leader asks whether the producer added its partition. If not, the client must abort and
    start again."""
    world = World()
    producer = world.started("a")
    world.add("a", producer, "t-0")
    written = len(world.log)
    token = world.send_add("a", producer, ["t-0", "t-1"], version=5, verify_only=True)
    assert world.added(token) == {at("t-0"): NONE, at("t-1"): ABORTABLE}
    assert len(world.log) == written
    assert world.add("a", Producer(1000, 3), "t-0", version=5, verify_only=True) is FENCED
    world.end("a", producer, commit=True)
    again = Producer(1000, 1)
    assert world.add("a", again, "t-0", version=5, verify_only=True) is ABORTABLE


def test_an_addition_that_is_not_committed_is_not_verified() -> None:
    """The addition may still be lost."""
    world = World()
    producer = world.started("a")
    world.holds_log = True
    world.send_add("a", producer, ["t-0"])
    assert world.add("a", producer, "t-0", version=5, verify_only=True) is ABORTABLE
    world.settle_one()
    assert world.add("a", producer, "t-0", version=5, verify_only=True) is NONE


def test_additions_to_a_timed_out_transaction_are_refused() -> None:
    """A verifying leader gets TRANSACTION_ABORTABLE. A client that is too old for this code is
    fenced."""
    world = World()
    producer = world.started("a", timeout_ms=1000)
    world.add("a", producer, "t-0")
    world.advance(1000)
    assert world.transaction("a").state is State.COMPLETE_ABORT
    assert world.add("a", producer, "t-0", version=5, verify_only=True) is ABORTABLE
    assert world.add("a", producer, "t-0", version=3) is FENCED


def test_offsets_are_added_as_a_partition() -> None:
    """AddOffsetsToTxn adds the partition of __consumer_offsets that stores the group."""
    world = World()
    producer = world.started("a")
    assert world.add_offsets("a", producer) is NONE
    assert world.transaction("a").partitions == {OFFSETS}
    assert world.add_offsets("a", Producer(1000, 9)) is FENCED
    assert world.add_offsets("a", Producer(1000, 9), 1) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_older_request_contains_one_transaction() -> None:
    """Versions 0 to 3 contain a single transaction, in other fields."""
    topics = [AddPartitionsToTxnRequest.Topic("t", [0])]
    request = AddPartitionsToTxnRequest([], "a", 5, 6, topics)
    assert transaction_of(request) == AddPartitionsToTxnRequest.Transaction(
        "a", 5, 6, False, topics
    )


def test_a_transaction_grows_only_until_its_record_fills_a_batch() -> None:
    """The partitions it has stay, and it can be ended: there is space for its last, larger
    record."""
    world = World()
    world.batch_bytes_max = 1_000
    producer = world.started("a")
    assert world.add("a", producer, *(f"t-{at}" for at in range(100))) is NONE
    many = [f"t-{at}" for at in range(400)]
    assert world.add("a", producer, *many) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(last_written(world).partitions) == 100
    assert world.add("a", producer, "t-100") is NONE
    assert not isinstance(world.end("a", producer, commit=True), ErrorCode)
    assert last_written(world).state is State.COMPLETE_COMMIT


def test_a_transactional_id_that_does_not_fit_a_record_is_refused() -> None:
    """Requests of flexible versions can contain longer strings than records."""
    world = World()
    assert world.init("a" * 40_000) is ErrorCode.INVALID_REQUEST
    assert world.init("a" * 32_767) == Producer(1000, 0)
