"""Dead letters of share groups on one broker: what they contain, and what happens without luck."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from broker.harness import BrokerHarness, with_harness_of
from broker.shares.share_client import GROUP, ON, Member, queue, settings, share_groups
from penstock.broker.shares import dead_letters
from penstock.records.batch import iter_batches
from penstock.records.record import Record, build_batch, read_records
from penstock.shares.settings import ShareSettings
from penstock.shares.state_port import SharePartitionId
from penstock.shares.states import AckType
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ProduceRequest,
    ProduceResponse,
)
from shares.fake_state import FakeShareState

REJECT, RELEASE = int(AckType.REJECT), int(AckType.RELEASE)
TOPIC = "dlq.orders"
ALLOWED = {"errors.deadletterqueue.group.enable": "true"}
LETTERS = ShareSettings(dead_letter_topic=TOPIC, copies_records=True, delivery_limit=2)


def letters(harness: BrokerHarness, topic: str = TOPIC, index: int = 0) -> list[Record]:
    """Returns all dead letters in a partition of the topic."""
    hosted = harness.broker.replicas.get(topic, index)
    if hosted is None:
        return []
    found: list[Record] = []
    offset = 0
    while (piece := hosted.log.read(offset, 1 << 20, hosted.high_watermark)) is not None:
        for position, header in iter_batches(piece.data):
            found += read_records(piece.data[position : position + header.size])
            offset = header.next_offset
    return found


def texts(letter: Record) -> dict[str, str]:
    return {name: (data or b"").decode() for name, data in letter.headers}


def offsets(found: Sequence[Record]) -> list[int]:
    return [int(texts(each)["__dlq.errors.offset"]) for each in found]


def start_offset(state: FakeShareState, topic_id: bytes, index: int = 0) -> int:
    return state.images[SharePartitionId(GROUP, topic_id, index)].start_offset


async def begin_leadership_again(harness: BrokerHarness, partitions: int = 1) -> None:
    """Ends the leadership of the queue's partitions, and begins another one."""
    every = [harness.hosted("orders", index) for index in range(partitions)]
    for hosted in every:
        before = hosted.leadership, hosted.follower
        hosted.resign()
        harness.broker.replicas.role_changes.tell(hosted, *before)
    harness.broker._take_up()
    await harness.until(lambda: all(hosted.leadership is not None for hosted in every))


async def rejected(
    harness: BrokerHarness, values: Sequence[bytes], given: ShareSettings = LETTERS
) -> tuple[FakeShareState, bytes]:
    """A member gets records, and rejects all of them."""
    state, topic_id = await queue(harness)
    settings(harness, given)
    await harness.produce("orders", values)
    anna = Member(harness, topic_id)
    await anna.fetch()
    assert await anna.acknowledge((0, len(values) - 1, REJECT)) is ErrorCode.NONE
    return state, topic_id


@share_groups
async def test_a_rejected_record_becomes_a_dead_letter(harness: BrokerHarness) -> None:
    await harness.create(TOPIC, configs=ALLOWED)
    state, topic_id = await rejected(harness, [b"a", b"b"])
    await harness.until(lambda: start_offset(state, topic_id) == 2)
    found = letters(harness)
    assert [each.value for each in found] == [b"a", b"b"]
    assert texts(found[1]) == {
        "__dlq.errors.topic": "orders",
        "__dlq.errors.partition": "0",
        "__dlq.errors.offset": "1",
        "__dlq.errors.group": GROUP,
        "__dlq.errors.delivery.count": "1",
        "__dlq.errors.message": "A member of the group rejected the record.",
    }
    assert harness.broker.shares.counters.letters.written == 2


@share_groups
async def test_the_key_and_the_headers_of_a_record_are_copied(harness: BrokerHarness) -> None:
    await harness.create(TOPIC, configs=ALLOWED)
    state, topic_id = await queue(harness)
    settings(harness, LETTERS)
    batch = build_batch([Record(0, 1, b"key", None, (("origin", b"web"),))])
    part = ProduceRequest.Partition(0, batch)
    topics = [ProduceRequest.Topic("orders", partition_data=[part])]
    await harness.ask(ProduceRequest(None, -1, 10_000, topics), 9, ProduceResponse)
    anna = Member(harness, topic_id)
    await anna.fetch()
    await anna.acknowledge((0, 0, REJECT))
    await harness.until(lambda: start_offset(state, topic_id) == 1)
    (letter,) = letters(harness)
    assert (letter.key, letter.value, letter.headers[0]) == (b"key", None, ("origin", b"web"))


@share_groups
async def test_without_the_setting_a_letter_only_says_which_record_it_was(
    harness: BrokerHarness,
) -> None:
    await harness.create(TOPIC, configs=ALLOWED)
    given = replace(LETTERS, copies_records=False)
    state, topic_id = await rejected(harness, [b"a"], given)
    await harness.until(lambda: start_offset(state, topic_id) == 1)
    (letter,) = letters(harness)
    assert (letter.key, letter.value) == (None, None)
    assert offsets([letter]) == [0]


@share_groups
async def test_a_record_at_the_delivery_limit_becomes_a_dead_letter(harness: BrokerHarness) -> None:
    await harness.create(TOPIC, configs=ALLOWED)
    state, topic_id = await queue(harness)
    settings(harness, LETTERS)
    await harness.produce("orders", [b"a"])
    anna = Member(harness, topic_id)
    for _ in range(2):
        await anna.fetch()
        await anna.acknowledge((0, 0, RELEASE))
    await harness.until(lambda: start_offset(state, topic_id) == 1)
    (letter,) = letters(harness)
    assert texts(letter)["__dlq.errors.delivery.count"] == "2"
    assert "as often as the group allows" in texts(letter)["__dlq.errors.message"]


@share_groups
async def test_letters_go_to_the_partition_with_the_same_number(harness: BrokerHarness) -> None:
    """If the dead-letter topic has fewer partitions, modulo their number."""
    await harness.create(TOPIC, 2, configs=ALLOWED)
    state, topic_id = await queue(harness, 4)
    settings(harness, LETTERS)
    await harness.produce("orders", [b"a"], 3)
    anna = Member(harness, topic_id, partitions=(3,))
    await anna.fetch()
    await anna.acknowledge((0, 0, REJECT), index=3)
    await harness.until(lambda: start_offset(state, topic_id, 3) == 1)
    assert [len(letters(harness, index=index)) for index in range(2)] == [0, 1]


@share_groups
async def test_many_letters_keep_their_order(harness: BrokerHarness) -> None:
    await harness.create(TOPIC, configs=ALLOWED)
    state, topic_id = await rejected(harness, [b"%d" % number for number in range(23)])
    await harness.until(lambda: start_offset(state, topic_id) == 23)
    assert offsets(letters(harness)) == [*range(23)]


@share_groups
async def test_a_letter_waits_until_a_new_leader_knows_that_its_record_is_committed(
    harness: BrokerHarness,
) -> None:
    """A new leader begins with the high watermark that it knew as a follower. A record above that
    is not missing."""
    await harness.create(TOPIC, configs=ALLOWED)
    state, topic_id = await queue(harness)
    settings(harness, LETTERS)
    await harness.produce("orders", [b"a"])
    anna = Member(harness, topic_id)
    await anna.fetch()
    term = harness.hosted("orders").leadership
    assert term is not None
    high_watermark, term.high_watermark = term.high_watermark, 0
    assert await anna.acknowledge((0, 0, REJECT)) is ErrorCode.NONE
    counters = harness.broker.shares.counters.letters
    await harness.until(lambda: counters.failures > 0 or start_offset(state, topic_id) > 0)
    assert (counters.missing, letters(harness)) == (0, [])
    term.high_watermark = high_watermark
    await harness.until(lambda: start_offset(state, topic_id) == 1)
    assert offsets(letters(harness)) == [0]


@share_groups
async def test_a_letter_that_was_written_before_the_leadership_ended_is_not_written_again(
    harness: BrokerHarness,
) -> None:
    await harness.create(TOPIC, configs=ALLOWED)
    sender = harness.broker.shares.letter_sender
    assert sender is not None
    state: FakeShareState | None = None
    append = sender.append
    attempts = 0

    async def append_and_lose(
        where: TopicPartition,
        batches: Sequence[bytes | bytearray],
        topic_id: bytes | None = None,
    ) -> list[ErrorCode]:
        nonlocal attempts
        attempts += 1
        codes = await append(where, batches)
        if attempts == 1:
            # What follows cannot be stored, and then the leadership ends.
            assert state is not None
            state.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return codes

    sender.append = append_and_lose  # type: ignore[method-assign]
    state, topic_id = await queue(harness)
    settings(harness, LETTERS)
    await harness.produce("orders", [b"a", b"b"])
    anna = Member(harness, topic_id)
    await anna.fetch()
    assert await anna.acknowledge((0, 1, REJECT)) is ErrorCode.NONE
    await harness.until(lambda: harness.broker.shares.counters.writes_failed > 0)
    await begin_leadership_again(harness)
    assert len(letters(harness)) == 2
    state.error = None
    await harness.produce("orders", [b"c"])
    await Member(harness, topic_id, "ben").fetch()
    await harness.until(partial(lambda of: start_offset(of, topic_id) == 2, state))
    assert attempts == 2
    assert offsets(letters(harness)) == [0, 1]


@share_groups
async def test_letters_wait_for_their_topic(harness: BrokerHarness) -> None:
    """Other records go on meanwhile."""
    state, topic_id = await rejected(harness, [b"a"])
    counters = harness.broker.shares.counters.letters
    await harness.until(lambda: counters.failures > 1)
    await harness.produce("orders", [b"b"])
    anna = Member(harness, topic_id, "ben")
    await anna.fetch()
    assert await anna.acknowledge((1, 1, int(AckType.ACCEPT))) is ErrorCode.NONE
    assert start_offset(state, topic_id) == 0
    await harness.create(TOPIC, configs=ALLOWED)
    await harness.until(lambda: start_offset(state, topic_id) == 2)
    assert offsets(letters(harness)) == [0]


@share_groups
async def test_records_are_archived_when_the_group_has_no_dead_letters_any_more(
    harness: BrokerHarness,
) -> None:
    state, topic_id = await rejected(harness, [b"a"])
    counters = harness.broker.shares.counters.letters
    await harness.until(lambda: counters.failures > 0)
    settings(harness, ShareSettings())
    for led in harness.broker.shares:
        led.refresh_settings()
    await harness.until(lambda: start_offset(state, topic_id) == 1)
    assert counters.written == 0


@share_groups
async def test_letters_are_written_after_their_topic_was_removed_before_the_first_one(
    harness: BrokerHarness,
) -> None:
    """The group has no producer id yet, and none can be had when the topic is removed."""
    await harness.create(TOPIC, configs=ALLOWED)
    shares = harness.broker.shares
    sender, shares.letter_sender = shares.letter_sender, None
    state, topic_id = await queue(harness)
    settings(harness, LETTERS)
    await harness.produce("orders", [b"a", b"b"])
    anna = Member(harness, topic_id)
    await anna.fetch()
    assert await anna.acknowledge((0, 0, REJECT)) is ErrorCode.NONE
    await harness.until(lambda: shares.counters.letters.failures > 0)
    (led,) = shares
    settings(harness, replace(LETTERS, dead_letter_topic=""))
    led.refresh_settings()
    await harness.until(lambda: start_offset(state, topic_id) == 1)
    await harness.until(lambda: not led._letters._running)
    settings(harness, LETTERS)
    led.refresh_settings()
    shares.letter_sender = sender
    assert await anna.acknowledge((1, 1, REJECT)) is ErrorCode.NONE
    await harness.until(lambda: offsets(letters(harness)) == [1])


@pytest.mark.parametrize(
    ("topic", "configs", "reason"),
    [
        (TOPIC, {}, "set errors.deadletterqueue.group.enable=true"),
        ("letters", ALLOWED, "errors.deadletterqueue.topic.name.prefix"),
        (TOPIC, None, "the topic does not exist"),
    ],
)
def test_topics_that_do_not_allow_dead_letters_get_none(
    topic: str,
    configs: dict[str, str] | None,
    reason: str,
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    @share_groups
    async def scenario(harness: BrokerHarness) -> None:
        if configs is not None:
            await harness.create(topic, configs=configs)
        await rejected(harness, [b"a"], replace(LETTERS, dead_letter_topic=topic))
        await harness.until(lambda: harness.broker.shares.counters.letters.failures > 0)
        assert letters(harness, topic) == []

    with caplog.at_level(logging.WARNING, dead_letters.__name__):
        scenario(tmp_path_factory.mktemp("broker"))
    assert reason in caplog.text


@with_harness_of(kafka={**ON, "errors.deadletterqueue.auto.create.topics.enable": "true"})
async def test_the_topic_is_created_if_brokers_may_do_that(harness: BrokerHarness) -> None:
    state, topic_id = await rejected(harness, [b"a"])
    await harness.until(lambda: start_offset(state, topic_id) == 1)
    assert offsets(letters(harness)) == [0]
    assert dict(harness.broker.cluster.image.topics[TOPIC].configs) == ALLOWED


@share_groups
async def test_a_copy_that_is_too_large_is_left_out(harness: BrokerHarness) -> None:
    await harness.create(TOPIC, configs={**ALLOWED, "max.message.bytes": "1000"})
    state, topic_id = await rejected(harness, [b"a", b"b" * 2000, b"c"])
    await harness.until(lambda: start_offset(state, topic_id) == 3)
    assert [each.value for each in letters(harness)] == [b"a", None, b"c"]
    assert harness.broker.shares.counters.letters.without_copy == 1


@share_groups
async def test_records_that_are_gone_have_no_letter(harness: BrokerHarness) -> None:
    """They are counted. The letters after them are written."""
    state, topic_id = await rejected(harness, [b"a", b"b", b"c"])
    counters = harness.broker.shares.counters.letters
    await harness.until(lambda: counters.failures > 0)
    part = DeleteRecordsRequest.Partition(0, 2)
    topics = [DeleteRecordsRequest.Topic("orders", [part])]
    await harness.ask(DeleteRecordsRequest(topics, 10_000), 2, DeleteRecordsResponse)
    await begin_leadership_again(harness)
    await harness.create(TOPIC, configs=ALLOWED)
    await harness.produce("orders", [b"d"])
    await Member(harness, topic_id, "ben").fetch()
    await harness.until(lambda: start_offset(state, topic_id) == 3)
    assert offsets(letters(harness)) == [2]
