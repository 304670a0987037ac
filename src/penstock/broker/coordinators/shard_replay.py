"""Replays a partition's log into a shard.

It is done in pieces, so that the event loop is never blocked for long, and ends only when
everything that was replayed is committed: uncommitted records may be lost with this leader, and no
client may see state that was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.ports import Env, Executor
from penstock.records.batch import BatchHeader, Buffer, iter_batches
from penstock.records.compression import DecompressedTooLarge
from penstock.records.record import Record, read_records
from penstock.wire.errors import ErrorCode

_LOAD_BYTES = 4 << 20
_DECODE_BYTES_MAX = 64 << 10
_DECODE_OUTPUT_BYTES_MAX = 256 << 10
"""A compressed batch beyond either size is decoded on a thread."""


async def replay_log(
    env: Env,
    hosted: HostedPartition,
    replay: Callable[[BatchHeader, Sequence[Record]], None],
    is_over: Callable[[], bool],
) -> bool:
    """Calls `replay` for each batch. Returns False if the leadership has ended meanwhile."""
    log = hosted.log
    offset, end = log.log_start_offset, log.end_offset
    while offset < end:
        piece = log.read(offset, _LOAD_BYTES, end)
        if piece is None:
            break
        for position, header in iter_batches(piece.data):
            offset = header.next_offset
            batch = piece.data[position : position + header.size]
            records = await decode(env.executor, batch, header)
            if is_over():
                return False
            replay(header, records)
        await asyncio.sleep(0)
        if is_over():
            return False
    if not is_over():
        await _committed(hosted, end)
    return not is_over()


async def decode(executor: Executor, batch: Buffer, header: BatchHeader) -> list[Record]:
    """Decodes a batch, on a thread if it takes long to decompress."""
    if not header.codec:
        return read_records(batch, header)
    if header.size <= _DECODE_BYTES_MAX:
        with suppress(DecompressedTooLarge):
            return read_records(batch, header, max_bytes=_DECODE_OUTPUT_BYTES_MAX)
    return await executor.run(partial(read_records, batch, header))


async def _committed(hosted: HostedPartition, end_offset: int) -> None:
    """Waits until everything below the offset is committed, or until the leadership has ended."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_outcome(_: ErrorCode | None) -> None:
        if not done.done():
            done.set_result(None)

    if not hosted.when_committed(end_offset, on_outcome):
        await done
