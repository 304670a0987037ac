"""Each invariant of transactions detects a cluster that was made to break it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from penstock.partition.producers import ProducerStates
from penstock.records.batch import HEADER_SIZE
from penstock.records.record import ControlType, Record, build_batch
from penstock.sim.checkers.metadata_invariants import InvariantBroken
from penstock.sim.checkers.shadow_log import ShadowLog
from penstock.sim.disk.disk import SimDisk
from penstock.topic_partition import TopicPartition
from penstock.txns.formats import transaction_record
from penstock.txns.transaction import State, Transaction
from sim.two_brokers import Cluster, Hosted, breaks, sound_cluster
from storage.log_bench import NOW_MS, LogBench

PRODUCER: dict[str, Any] = {"producer_id": 5, "base_sequence": 0, "transactional": True}


def decide(cluster: Cluster, state: State, epoch: int, name: str = "x") -> None:
    """Records a decision as the coordinator's log would have it, once it is committed."""
    transaction = Transaction(
        name, 5, epoch, 1000, state, NOW_MS, NOW_MS, frozenset({TopicPartition("t", 0)})
    )
    record = transaction_record(transaction)
    bench = LogBench(SimDisk(Random(1), Random(2)))
    log = bench.create()
    log.append(build_batch([Record(0, NOW_MS, record.key, record.value)]), 0, NOW_MS)
    shadow = ShadowLog(log, bench.sim.peek, keep_bodies=True)
    shadow.refresh()
    cluster.invariants.txns.on_committed("__transaction_state-0", shadow.marks[0], shadow)


@pytest.fixture
def cluster() -> Cluster:
    """A sound cluster with a transaction open since offset 2."""
    made = sound_cluster()
    for broker_id in (0, 1):
        made.write(broker_id, b"c", producer_epoch=1, **PRODUCER)
    made.check()
    made.commit(3)
    made.check()
    return made


def test_transactions_that_end_as_decided_break_no_rule(cluster: Cluster) -> None:
    """The first is committed, the next aborted; readers wait until the marker is committed."""
    decide(cluster, State.PREPARE_COMMIT, 2)
    for broker_id in (0, 1):
        cluster.mark(broker_id, ControlType.COMMIT, 5, 2)
    cluster.check()
    assert cluster.nodes[0].hosted.last_stable_offset == 2
    cluster.commit(4)
    cluster.check()
    assert cluster.nodes[0].hosted.last_stable_offset == 4
    for broker_id in (0, 1):
        cluster.write(broker_id, b"d", producer_epoch=2, **PRODUCER)
    cluster.check()
    decide(cluster, State.PREPARE_ABORT, 3)
    for broker_id in (0, 1):
        cluster.mark(broker_id, ControlType.ABORT, 5, 3)
    cluster.check()
    cluster.commit(6)
    cluster.check()


@pytest.mark.parametrize("decided", [None, State.PREPARE_ABORT])
def test_a_marker_without_a_matching_decision_is_detected(
    cluster: Cluster, decided: State | None
) -> None:
    """I9: the coordinator decided nothing, or the opposite."""
    if decided is not None:
        decide(cluster, decided, 2)
    cluster.mark(0, ControlType.COMMIT, 5, 2)
    assert breaks(cluster) == "I9"


def test_a_producer_id_shared_by_two_transactional_ids_is_detected(cluster: Cluster) -> None:
    """I9: the writes of one transactional id could be mistaken for those of the other."""
    decide(cluster, State.ONGOING, 2)
    with pytest.raises(InvariantBroken, match="y got producer id 5, which belongs to x"):
        decide(cluster, State.ONGOING, 0, "y")


def test_a_write_by_a_fenced_producer_is_detected(cluster: Cluster) -> None:
    """I9: once its successor has an epoch, none of its later writes may be committed."""
    cluster.fences[5] = 2
    for broker_id in (0, 1):
        cluster.write(
            broker_id, b"d", producer_id=5, base_sequence=1, transactional=True, producer_epoch=1
        )
    cluster.check()
    cluster.commit(4)
    assert breaks(cluster) == "I9"


def test_a_write_from_before_its_producer_was_fenced_is_allowed(cluster: Cluster) -> None:
    """Writes from before the fencing may be committed later."""
    for broker_id in (0, 1):
        cluster.write(
            broker_id, b"d", producer_id=5, base_sequence=1, transactional=True, producer_epoch=1
        )
    cluster.check()
    cluster.fences[5] = 2
    cluster.commit(4)
    cluster.check()


def test_a_last_stable_offset_beyond_an_open_transaction_is_detected(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9."""
    monkeypatch.setattr(ProducerStates, "last_stable_offset", lambda self, high, start: high)
    cluster.write(0, b"d")
    assert breaks(cluster) == "I9"


def test_a_broker_that_forgot_an_open_transaction_is_detected(cluster: Cluster) -> None:
    """I12: its producer state does not match its log."""
    cluster.nodes[1].log.producers.clear()
    cluster.write(1, b"d")
    assert breaks(cluster) == "I12"


def test_an_abort_missing_from_the_aborted_index_is_detected(cluster: Cluster) -> None:
    """I12: readers would mistake aborted records for committed ones."""
    decide(cluster, State.PREPARE_ABORT, 2)
    cluster.mark(0, ControlType.ABORT, 5, 2)
    cluster.nodes[0].log.active.aborted = None
    assert breaks(cluster) == "I12"


def test_a_log_that_lacks_synced_records_when_it_is_opened_is_detected(cluster: Cluster) -> None:
    """I12: after a restart the log has fewer records, or others."""
    node, txns = cluster.nodes[1], cluster.invariants.txns

    def opened() -> ShadowLog:
        shadow = ShadowLog(node.log, node.bench.sim.peek)
        shadow.refresh()
        return shadow

    txns.check_opened(1, "t-0", opened())
    node.log.truncate_to(2)
    with pytest.raises(InvariantBroken, match="2 records, but 3"):
        txns.check_opened(1, "t-0", opened())
    cluster.write(1, b"x")
    with pytest.raises(InvariantBroken, match="differs from what had been synced"):
        txns.check_opened(1, "t-0", opened())
    txns.forget(cluster.invariants.metadata.image, disturbed=[1])
    txns.check_opened(1, "t-0", opened())


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_log_that_failed_during_a_truncation_may_lack_uncommitted_records_only(
    cluster: Cluster, *, is_committed: bool
) -> None:
    """I12: uncommitted records may be there or not; committed ones must be."""
    node = cluster.nodes[1]
    if not is_committed:
        cluster.write(1, b"d")
        cluster.check()
    end = node.log.end_offset
    node.log.state.failure = "the disk failed"
    cluster.check()
    node.log.state.failure = None
    node.log.truncate_to(end - 1)
    shadow = ShadowLog(node.log, node.bench.sim.peek)
    shadow.refresh()
    if not is_committed:
        cluster.invariants.txns.check_opened(1, "t-0", shadow)
        return
    with pytest.raises(InvariantBroken, match="2 records, but 3"):
        cluster.invariants.txns.check_opened(1, "t-0", shadow)


@pytest.mark.parametrize("position", [0, 8, 14])
def test_the_outcome_of_a_rotten_marker_is_unknown_until_it_is_fetched_again(
    cluster: Cluster, position: int
) -> None:
    """The broker holds readers back while it does not know how the transaction ended. Whatever the
    rotten bytes look like, the log is the same batch by batch."""
    decide(cluster, State.PREPARE_COMMIT, 2)
    for broker_id in (0, 1):
        cluster.mark(broker_id, ControlType.COMMIT, 5, 2)
        cluster.write(broker_id, b"e")
    cluster.check()
    node, txns = cluster.nodes[1], cluster.invariants.txns
    sound = ShadowLog(node.log, node.bench.sim.peek)
    sound.refresh()
    bench = node.bench
    bench.kill()
    bench.flip_bit(bench.log_path(), bench.position_of(3) + HEADER_SIZE + position)
    hosted = Hosted(bench.open(cache_is_intact=True))
    hosted.known = 5
    assert [(held.start_offset, held.end_offset) for held in hosted.log.damage] == [(3, 4)]
    assert hosted.last_stable_offset == 2
    rotten = ShadowLog(hosted.log, bench.sim.peek)
    rotten.refresh()
    assert [rotten.chain_at(end) for end in range(6)] == [sound.chain_at(end) for end in range(6)]
    assert rotten.marks[3].marker is None
    txns.check_known(1, "t-0", rotten, hosted)  # type: ignore[arg-type]
    txns.check_aborted(1, "t-0", rotten, 0)
    # Truncated, as before fetching again: the producer state is checked again, and an error is
    # found.
    hosted.log.truncate_to(3)
    hosted.known = 3
    rotten.refresh()
    txns.check_known(1, "t-0", rotten, hosted)  # type: ignore[arg-type]
    hosted.log.producers.clear()
    with pytest.raises(InvariantBroken):
        txns.check_known(1, "t-0", rotten, hosted)  # type: ignore[arg-type]
