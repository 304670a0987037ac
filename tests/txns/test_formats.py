"""The records of __transaction_state are Kafka's, byte for byte, and are read as they were
written."""

from __future__ import annotations

import struct

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.topic_partition import TopicPartition
from penstock.txns.formats import Entry, read_record, tombstone, transaction_record
from penstock.txns.transaction import State, Transaction
from penstock.wire.errors import ProtocolError

NAMES = st.text(min_size=1, max_size=12)
PARTITIONS = st.frozensets(st.builds(TopicPartition, NAMES, st.integers(0, 2**31 - 1)), max_size=6)


def tag(number: int, data: bytes) -> bytes:
    return bytes([number, len(data)]) + data


def test_an_empty_transaction_has_kafkas_bytes() -> None:
    """Version 1, no tags, null partitions."""
    record = transaction_record(Transaction("tx", 7, 3, 60_000, State.EMPTY, 1234))
    assert record.key == b"\0\0" + b"\0\2tx"
    assert record.value == (
        struct.pack(">hqhib", 1, 7, 3, 60_000, 0) + b"\0" + struct.pack(">qq", 1234, -1) + b"\0"
    )


def test_a_prepared_commit_has_kafkas_bytes() -> None:
    """Partitions sorted by topic in compact arrays, the version of the client in tag 2."""
    partitions = frozenset({TopicPartition("b", 0), TopicPartition("a", 5), TopicPartition("a", 1)})
    prepared = Transaction("tx", 7, 3, 60_000, State.ONGOING, 1234, 1200, partitions).prepared(
        committed=True, client_version=2, next_producer_id=-1, now_ms=1300
    )
    assert transaction_record(prepared).value == (
        struct.pack(">hqhib", 1, 7, 4, 60_000, 2)
        + b"\3"
        + (b"\2a" + b"\3" + struct.pack(">ii", 1, 5) + b"\0")
        + (b"\2b" + b"\2" + struct.pack(">i", 0) + b"\0")
        + struct.pack(">qq", 1300, 1200)
        + b"\1"
        + tag(2, struct.pack(">h", 2))
    )


def test_the_previous_and_next_producer_ids_are_tags_0_and_1() -> None:
    """A transaction at its last epoch has both."""
    value = transaction_record(
        Transaction(
            "tx", 7, 32767, 1, State.PREPARE_ABORT, 5, 5,
            last_producer_epoch=32766, previous_producer_id=6, next_producer_id=8, client_version=2,
        )
    ).value  # fmt: skip
    assert value is not None
    assert value.endswith(
        b"\3"
        + tag(0, struct.pack(">q", 6))
        + tag(1, struct.pack(">q", 8))
        + tag(2, struct.pack(">h", 2))
    )


def test_version_0_is_read() -> None:
    """Brokers before transaction.version 1 wrote it: no compact lengths, no tags."""
    value = (
        struct.pack(">hqhib", 0, 7, 3, 60_000, 1)
        + struct.pack(">i", 1)
        + b"\0\1t"
        + struct.pack(">iii", 2, 0, 4)
        + struct.pack(">qq", 1234, 1200)
    )
    assert read_record(b"\0\0\0\2tx", value) == Entry(
        "tx",
        Transaction(
            "tx", 7, 3, 60_000, State.ONGOING, 1234, 1200,
            frozenset({TopicPartition("t", 0), TopicPartition("t", 4)}),
        ),
    )  # fmt: skip


def test_tags_of_newer_brokers_are_skipped() -> None:
    """KIP-915: newer versions only add tagged fields."""
    record = transaction_record(Transaction("tx", 7, 3, 60_000, State.EMPTY, 1234))
    assert record.value is not None
    newer = record.value[:-1] + b"\1" + tag(3, b"\0\5")
    assert read_record(record.key, newer) == read_record(*record)


@pytest.mark.parametrize(("epoch", "implied"), [(5, 4), (0, 32766)])
def test_the_previous_epoch_is_derived_from_kafkas_fields(epoch: int, implied: int) -> None:
    """A transaction that ended with version 2 raised the epoch by one, or got a new producer id."""
    value = (
        struct.pack(">hqhib", 1, 7, epoch, 60_000, 4)
        + b"\1"
        + struct.pack(">qq", 1234, 1200)
        + b"\2"
        + tag(0, struct.pack(">q", 6))
        + tag(2, struct.pack(">h", 2))
    )
    entry = read_record(b"\0\0\0\2tx", value)
    assert entry is not None
    assert entry.transaction is not None
    assert entry.transaction.last_producer_epoch == implied


def test_a_tombstone_has_no_value() -> None:
    assert read_record(*tombstone("tx")) == Entry("tx", None)


def test_other_keys_are_skipped() -> None:
    """A record of an unknown type, or without a key."""
    assert read_record(b"\0\1\0\2tx", b"") is None
    assert read_record(None, b"") is None


@pytest.mark.parametrize(
    "value",
    [
        b"\0",
        b"\0\1",
        struct.pack(">hqhib", 2, 7, 3, 1, 0),
        struct.pack(">hqhib", 1, 7, 3, 1, 6) + b"\0" + struct.pack(">qq", 1, 1) + b"\0",
    ],
)
def test_damaged_records_raise_an_error(value: bytes) -> None:
    """Cut short, of an unknown version, or with an invalid state."""
    with pytest.raises(ProtocolError):
        read_record(b"\0\0\0\2tx", value)


@settings(deadline=None, max_examples=100)
@given(
    st.builds(
        Transaction,
        transactional_id=NAMES,
        producer_id=st.integers(0, 2**63 - 1),
        producer_epoch=st.integers(0, 32767),
        timeout_ms=st.integers(1, 2**31 - 1),
        state=st.sampled_from(State),
        update_ms=st.integers(0, 2**62),
        start_ms=st.integers(-1, 2**62),
        partitions=PARTITIONS,
        last_producer_epoch=st.integers(-1, 32767),
        previous_producer_id=st.integers(-1, 2**63 - 1),
        next_producer_id=st.integers(-1, 2**63 - 1),
        client_version=st.integers(0, 2),
    )
)
def test_every_field_is_read_as_it_was_written(transaction: Transaction) -> None:
    assume(transaction.state is not State.EMPTY or not transaction.partitions)
    record = transaction_record(transaction)
    assert read_record(*record) == Entry(transaction.transactional_id, transaction)
