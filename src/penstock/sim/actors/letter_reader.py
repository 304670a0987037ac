"""Reads the dead letters of share groups: all the time during a run, and once more in the end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from penstock.aio import Consumer
from penstock.client.errors import ClientError
from penstock.client.model import Record
from penstock.sim.actors.readers import BytesConsumer, consumer_keywords
from penstock.sim.actors.shared_state import Actor
from penstock.sim.history import INFO, OK, LetterRow, LettersRead
from penstock.sim.share_plan import letter_topic
from penstock.topic_partition import TopicPartition

_POLL_MS: Final = 1_000
_PREFIX: Final = "__dlq.errors."


def read_letter(record: Record[bytes | None, bytes | None]) -> LetterRow:
    """Returns what a dead letter says in its headers. What is missing is empty, or -1."""
    said = {name: value or b"" for name, value in record.headers if name.startswith(_PREFIX)}

    def text(name: str) -> str:
        return said.get(_PREFIX + name, b"").decode(errors="replace")

    def number(name: str) -> int:
        return int(text(name)) if text(name).isdecimal() else -1

    return (
        record.offset,
        text("group"),
        f"{text('topic')}-{text('partition')}",
        number("offset"),
        number("delivery.count"),
        text("message"),
    )


async def run_letter_reader(actor: Actor, *, group: str) -> None:
    """Reads the dead letters of a group from the start on, until the load is over."""
    shared = actor.shared
    at = TopicPartition(letter_topic(group), 0)
    while not shared.over.is_set():
        consumer: BytesConsumer = Consumer(
            shared.bootstrap, env=actor.env, **consumer_keywords(actor)
        )
        try:
            await consumer.start()
        except ClientError:
            await shared.rest(0.5)
            continue
        try:
            consumer.assign([at])
            await _read_on(actor, consumer, at)
        finally:
            with suppress(ClientError):
                await consumer.close(timeout_s=5.0)


async def _read_on(actor: Actor, consumer: BytesConsumer, at: TopicPartition) -> None:
    shared = actor.shared
    while not shared.over.is_set():
        begun_ms = shared.now_ms()
        try:
            found = await consumer.poll(timeout_ms=_POLL_MS)
        except ClientError:
            return
        if found:
            _note(actor, at, begun_ms, tuple(map(read_letter, found)))
        await shared.rest(actor.draws.choice((0.1, 0.5, 2.0)))


async def drain_letters(actor: Actor) -> None:
    """Reads the dead letters of all groups from the start to the end."""
    shared = actor.shared
    plan = shared.scenario.shares
    for group in plan.names if plan is not None and plan.dead_letters else ():
        at = TopicPartition(letter_topic(group), 0)
        begun_ms, error = shared.now_ms(), ""
        letters: list[LetterRow] = []
        try:
            async with asyncio.timeout(shared.scenario.mend_s):
                consumer: BytesConsumer = Consumer(
                    shared.bootstrap, env=actor.env, auto_offset_reset="earliest", **actor.keywords
                )
                async with consumer:
                    end = (await consumer.end_offsets([at]))[at]
                    consumer.assign([at])
                    consumer.seek_to_beginning(at)
                    while (consumer.known_position(at) or 0) < end:
                        letters += map(read_letter, await consumer.poll(timeout_ms=500))
        except (ClientError, TimeoutError) as failed:
            error = str(failed) or "it took too long"
        _note(actor, at, begun_ms, tuple(letters), is_all=True, error=error)


def _note(
    actor: Actor,
    at: TopicPartition,
    begun_ms: float,
    letters: tuple[LetterRow, ...],
    *,
    is_all: bool = False,
    error: str = "",
) -> None:
    actor.shared.count("letters_read", len(letters))
    actor.shared.history.add(
        LettersRead(
            process=actor.name,
            status=INFO if error else OK,
            begun_ms=begun_ms,
            ended_ms=actor.shared.now_ms(),
            error=error,
            partition_name=str(at),
            letters=letters,
            is_all=is_all,
        )
    )
