"""Thousands of topics are created and deleted without blocking the event loop for long."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

from .harness import BrokerHarness, open_harness
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


async def create(harness: BrokerHarness, request: CreateTopicsRequest) -> None:
    before_s = piece_of_work_s()
    answer, meter = await occupation(harness, request, 7, CreateTopicsResponse)
    check(meter, before_s)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.NONE}
    assert len(answer.topics) == len(request.topics)


async def delete(harness: BrokerHarness, request: DeleteTopicsRequest) -> None:
    """Deletes topics. The measurement includes dropping their logs, which happens before the
    response.
    """
    before_s = piece_of_work_s()
    answer, meter = await occupation(harness, request, 6, DeleteTopicsResponse)
    check(meter, before_s)
    assert {topic.error_code for topic in answer.responses} == {ErrorCode.NONE}
    assert len(answer.responses) == len(request.topics)


def test_creating_and_deleting_ten_thousand_topics_does_not_block_the_event_loop(
    tmp_path: Path,
) -> None:
    async def run_case(folder: Path) -> None:
        with counted_executor():
            async with asyncio.timeout(patient(DEADLINE_S)), open_harness(folder) as harness:
                # The first use of an API compiles its codec, which happens once per process.
                await harness.ask(creation("first", 1), 7, CreateTopicsResponse)
                await harness.ask(deletion("first", 1), 6, DeleteTopicsResponse)
                await create(harness, creation("checked", VALIDATED, validate_only=True))
                await create(harness, creation("made", TOPICS))
                assert len(harness.broker.replicas) == TOPICS
                await delete(harness, deletion("made", TOPICS))
                assert len(harness.broker.replicas) == 0

    at_best(run_case, tmp_path)
