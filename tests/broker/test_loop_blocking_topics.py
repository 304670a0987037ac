"""Thousands of topics are created and deleted without blocking the event loop for long."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

from .harness import BrokerHarness, on_stage
from .loop_blocking import at_best, check, counted_executor, occupation, piece_of_work_s

TOPICS = 10_000
VALIDATED = 2_000
DEADLINE_S = 600.0


def creation(prefix: str, count: int, *, validate_only: bool = False) -> CreateTopicsRequest:
    topics = [CreateTopicsRequest.Topic(f"{prefix}{number}", 1, 1) for number in range(count)]
    return CreateTopicsRequest(topics, timeout_ms=60_000, validate_only=validate_only)


def deletion(prefix: str, count: int) -> DeleteTopicsRequest:
    topics = [DeleteTopicsRequest.Topic(f"{prefix}{number}") for number in range(count)]
    return DeleteTopicsRequest(topics, timeout_ms=60_000)


async def create(stage: BrokerHarness, request: CreateTopicsRequest) -> None:
    before_s = piece_of_work_s()
    answer, meter = await occupation(stage, request, 7, CreateTopicsResponse)
    check(meter, before_s)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.NONE}
    assert len(answer.topics) == len(request.topics)


async def delete(stage: BrokerHarness, request: DeleteTopicsRequest) -> None:
    """Deletes topics. The measurement includes dropping their logs, which happens before the
    response.
    """
    before_s = piece_of_work_s()
    answer, meter = await occupation(stage, request, 6, DeleteTopicsResponse)
    check(meter, before_s)
    assert {topic.error_code for topic in answer.responses} == {ErrorCode.NONE}
    assert len(answer.responses) == len(request.topics)


def test_creating_and_deleting_ten_thousand_topics_does_not_block_the_event_loop(
    tmp_path: Path,
) -> None:
    async def play(folder: Path) -> None:
        with counted_executor():
            async with asyncio.timeout(DEADLINE_S), on_stage(folder) as stage:
                # The first use of an API compiles its codec, which happens once per process.
                await stage.ask(creation("first", 1), 7, CreateTopicsResponse)
                await stage.ask(deletion("first", 1), 6, DeleteTopicsResponse)
                await create(stage, creation("checked", VALIDATED, validate_only=True))
                await create(stage, creation("made", TOPICS))
                assert len(stage.broker.replicas) == TOPICS
                await delete(stage, deletion("made", TOPICS))
                assert len(stage.broker.replicas) == 0

    at_best(play, tmp_path)
