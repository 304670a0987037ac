"""AddPartitionsToTxn and AddOffsetsToTxn: who may add, who is told to wait, what is written."""

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
    """It is in the log before the answer, with the time it began."""
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


def test_what_is_there_already_is_not_written_again() -> None:
    """A request said again costs nothing."""
    world = World()
    producer = world.started("a")
    world.add("a", producer, "t-0", "t-1")
    written = len(world.log)
    assert world.add("a", producer, "t-1") is NONE
    assert len(world.log) == written


def test_strangers_are_refused() -> None:
    """An unknown transactional id, another's producer id, another epoch, no id at all."""
    world = World()
    producer = world.started("a")
    assert world.add("b", producer, "t-0") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.add("a", Producer(5, 0), "t-0") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.add("a", Producer(1000, 1), "t-0") is FENCED
    assert world.add("a", Producer(1000, 1), "t-0", version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.add("", producer, "t-0") is ErrorCode.INVALID_REQUEST


def test_additions_may_overlap() -> None:
    """Many leaders ask at once (KIP-890): nobody waits, each record holds all before it."""
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


def test_an_addition_that_fails_takes_no_other_with_it() -> None:
    """The first of two is refused by the log and the second is not: the second counts."""
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


def test_nothing_is_added_while_the_transaction_before_ends() -> None:
    """Also to the producer that holds the next epoch already: its markers are on their way."""
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
    """A leader asks whether the producer added its partition: yes, or abort and begin again."""
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


def test_what_is_not_committed_is_not_verified() -> None:
    """An addition that is on its way may be lost yet."""
    world = World()
    producer = world.started("a")
    world.holds_log = True
    world.send_add("a", producer, ["t-0"])
    assert world.add("a", producer, "t-0", version=5, verify_only=True) is ABORTABLE
    world.settle_one()
    assert world.add("a", producer, "t-0", version=5, verify_only=True) is NONE


def test_a_transaction_that_timed_out_can_be_aborted_and_begun_anew() -> None:
    """The leader hears that it is abortable; a client too old for the word is fenced."""
    world = World()
    producer = world.started("a", timeout_ms=1000)
    world.add("a", producer, "t-0")
    world.advance(1000)
    assert world.transaction("a").state is State.COMPLETE_ABORT
    assert world.add("a", producer, "t-0", version=5, verify_only=True) is ABORTABLE
    assert world.add("a", producer, "t-0", version=3) is FENCED


def test_offsets_are_a_partition_like_others() -> None:
    """AddOffsetsToTxn adds the partition of __consumer_offsets that holds the group."""
    world = World()
    producer = world.started("a")
    assert world.add_offsets("a", producer) is NONE
    assert world.transaction("a").partitions == {OFFSETS}
    assert world.add_offsets("a", Producer(1000, 9)) is FENCED
    assert world.add_offsets("a", Producer(1000, 9), 1) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_older_request_is_one_transaction() -> None:
    """Versions 0 to 3 hold a single transaction, in other fields."""
    topics = [AddPartitionsToTxnRequest.Topic("t", [0])]
    request = AddPartitionsToTxnRequest([], "a", 5, 6, topics)
    assert transaction_of(request) == AddPartitionsToTxnRequest.Transaction(
        "a", 5, 6, False, topics
    )


def test_a_transaction_grows_only_as_far_as_its_record_fits_a_batch() -> None:
    """What it has stays, and it can be ended: its last record is a little larger."""
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


def test_a_transactional_id_that_no_record_can_hold_is_refused() -> None:
    """Requests of flexible versions can have longer strings than records."""
    world = World()
    assert world.init("a" * 40_000) is ErrorCode.INVALID_REQUEST
    assert world.init("a" * 32_767) == Producer(1000, 0)
