"""Fetch sessions and a broker's lives: who comes back with a session of the life before is told so.

A consumer that fetched elsewhere while the broker was away still has its session's id. If the new
life gave that id to another reader, the two would move each other's offsets, and one of them would
miss records that it never hears of.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.records.batch import iter_batches
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import FetchRequest, FetchResponse

from .stage import TIMEOUT_S, Stage, on_stage, staged

VERSION = 12


async def fetch(
    stage: Stage, session: tuple[int, int], offset: int, *, bytes_min: int = 1, wait_ms: int = 0
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
    return await stage.ask(request, VERSION, FetchResponse)


def offsets(answer: FetchResponse) -> list[int]:
    given = answer.responses[0].partitions[0].records or b""
    data = memoryview(b"".join(given) if isinstance(given, list) else given)
    return [header.base_offset for _, header in iter_batches(data)]


def test_a_session_of_the_life_before_moves_nobodys_offsets(tmp_path: Path) -> None:
    """One reader has a session of the first life. In the second another reader begins one and
    waits; then the first goes on with its own. It is told to begin again, and the one who waits
    gets every record from where it asked."""

    async def begin_in_one_life() -> int:
        async with on_stage(tmp_path / "first") as stage:
            await stage.create("orders")
            return (await fetch(stage, (0, 0), 0)).session_id

    async def meet_in_another(stale: int) -> None:
        async with on_stage(tmp_path / "second") as stage:
            await stage.create("orders")
            for value in (b"a", b"b", b"c"):
                await stage.produce("orders", [value])
            waiting = asyncio.ensure_future(fetch(stage, (0, 0), 0, bytes_min=1 << 20, wait_ms=100))
            await asyncio.sleep(0)
            refused = await fetch(stage, (stale, 1), 2)
            assert refused.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert offsets(await waiting) == [0, 1, 2]

    async def play() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            for name in ("first", "second"):
                (tmp_path / name).mkdir()
            await meet_in_another(await begin_in_one_life())

    asyncio.run(play())


@staged
async def test_a_session_by_id_takes_no_request_by_name(stage: Stage) -> None:
    """Else a partition could be in it twice, at two offsets, and the reader would take either."""
    topic_id = await stage.create("orders")
    partition = FetchRequest.Partition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        session_id=0,
        session_epoch=0,
        topics=[FetchRequest.Topic(topic_id=topic_id, partitions=[partition])],
    )
    begun = await stage.ask(request, 13, FetchResponse)
    refused = await fetch(stage, (begun.session_id, 1), 0)
    assert refused.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
