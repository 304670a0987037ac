"""Fetch sessions across restarts: a broker refuses sessions from its previous run.

A consumer that fetched from other brokers while this one was down still has its session's id. If
the restarted broker gave the same id to another reader, the two would move each other's offsets,
and one of them would miss records without noticing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker.harness import TIMEOUT_S, BrokerHarness, open_harness, with_harness
from penstock.records.batch import iter_batches
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import FetchRequest, FetchResponse

VERSION = 12


async def fetch(
    harness: BrokerHarness,
    session: tuple[int, int],
    offset: int,
    *,
    bytes_min: int = 1,
    wait_ms: int = 0,
) -> FetchResponse:
    partition = FetchRequest.Partition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=bytes_min,
        max_bytes=1 << 20,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchRequest.Topic("orders", partitions=[partition])],
    )
    return await harness.ask(request, VERSION, FetchResponse)


def offsets(answer: FetchResponse) -> list[int]:
    given = answer.responses[0].partitions[0].records or b""
    data = memoryview(b"".join(given) if isinstance(given, list) else given)
    return [header.base_offset for _, header in iter_batches(data)]


def test_a_session_from_before_a_restart_does_not_move_another_readers_offsets(
    tmp_path: Path,
) -> None:
    """One reader has a session from the first run. In the second run another reader begins a
    session and waits. Then the first reader continues its session: it must begin a new one, and
    the waiting reader gets every record from its offset on.
    """

    async def begin_in_one_life() -> int:
        async with open_harness(tmp_path / "first") as harness:
            await harness.create("orders")
            return (await fetch(harness, (0, 0), 0)).session_id

    async def meet_in_another(stale: int) -> None:
        async with open_harness(tmp_path / "second") as harness:
            await harness.create("orders")
            for value in (b"a", b"b", b"c"):
                await harness.produce("orders", [value])
            waiting = asyncio.ensure_future(
                fetch(harness, (0, 0), 0, bytes_min=1 << 20, wait_ms=100)
            )
            await asyncio.sleep(0)
            refused = await fetch(harness, (stale, 1), 2)
            assert refused.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert offsets(await waiting) == [0, 1, 2]

    async def run_case() -> None:
        async with asyncio.timeout(patient(TIMEOUT_S)):
            for name in ("first", "second"):
                (tmp_path / name).mkdir()
            await meet_in_another(await begin_in_one_life())

    asyncio.run(run_case())


@with_harness
async def test_a_session_with_topic_ids_refuses_a_request_with_topic_names(
    harness: BrokerHarness,
) -> None:
    """Otherwise a partition could be in the session twice, at two offsets, and the reader would
    accept records for either.
    """
    topic_id = await harness.create("orders")
    partition = FetchRequest.Partition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        session_id=0,
        session_epoch=0,
        topics=[FetchRequest.Topic(topic_id=topic_id, partitions=[partition])],
    )
    begun = await harness.ask(request, 13, FetchResponse)
    refused = await fetch(harness, (begun.session_id, 1), 0)
    assert refused.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
