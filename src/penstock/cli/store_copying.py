"""Copies the metadata of a stopped cluster from one store to another.

The brokers keep revisions in their data directories, and in the metadata: their broker epochs are
revisions. So the revision of the target is raised first: everything that happens there later has a
higher revision than anything that happened in the source. Values that refer to the revision of
their own commit get it as a number (`metadata.relocation`).

While a copy is in progress, the target has the key `/penstock/copying`, with which no broker
starts. The key that makes it a cluster is written last, in the same commit that removes that mark,
and only when everything else was read back and the source has not changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.metadata.keys import BROKERS_PREFIX, CLUSTER_KEY, PREFIX
from penstock.metadata.relocation import self_contained
from penstock.ports import Clock, Compare, Delete, KeyValue, MetadataStore, Put
from penstock.stores.errors import StoreBusy
from penstock.stores.opening import MARK

BATCH_KEYS: Final = 50
BATCH_BYTES: Final = 256 << 10
_LOOK_EVERY_S: Final = 0.25
_AT_ONCE: Final = 128
_BUSY_ATTEMPTS: Final = 20

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


class CopyRefused(Exception):
    """The copy cannot be made, or did not succeed. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Copied:
    keys: int
    value_bytes: int
    source_revision: int
    target_revision: int


async def copy_store(
    source: MetadataStore,
    target: MetadataStore,
    clock: Clock,
    *,
    lease_wait_s: float,
    progress: Progress = lambda _what, _done, _total: None,
) -> Copied:
    """Copies everything and checks it by reading it back.

    Waits up to `lease_wait_s` for leases of the source to end: those of killed brokers do."""
    entries, revision = await _stopped(source, clock, lease_wait_s, progress)
    await _require_empty(target)
    # A store that can do that at once must still be empty.
    advance: Any = getattr(target, "advance", None)
    if advance is not None:
        await advance(revision)
    await _commit(target, [Compare(MARK, 0)], [Put(MARK, b"in progress")])
    await _raise_revision(target, revision, progress)
    values = {
        entry.key: self_contained(entry.key, entry.value, entry.modify_revision)
        for entry in entries
    }
    parts = {key: value for key, value in values.items() if key != CLUSTER_KEY}
    done = 0
    for batch in _batches(parts):
        compares = [Compare(change.key, 0) for change in batch]
        await _commit(target, compares, batch)
        done += len(batch)
        progress("copied keys", done, len(values))
    mark = await _verify(target, parts)
    after, revision_after = await source.range(PREFIX)
    if _state(after) != _state(entries):
        raise CopyRefused(
            f"the source has changed from revision {revision} to {revision_after} while it was "
            "copied: stop all brokers, empty the target, and copy again"
        )
    last: list[Put | Delete] = [Put(CLUSTER_KEY, values[CLUSTER_KEY]), Delete(MARK)]
    reached = await _commit(target, [Compare(CLUSTER_KEY, 0), Compare(MARK, mark)], last)
    progress("copied keys", len(values), len(values))
    return Copied(len(values), sum(map(len, values.values())), revision, reached)


async def _stopped(
    source: MetadataStore, clock: Clock, lease_wait_s: float, progress: Progress
) -> tuple[list[KeyValue], int]:
    """Returns the content of the source, once nothing in it has a lease."""
    began_at = clock.monotonic()
    while True:
        # SQLite ends leases with writes, also with those that change nothing.
        await source.commit((), ())
        entries, revision = await source.range(PREFIX)
        leased = [entry.key for entry in entries if entry.lease]
        if not leased:
            break
        waited_s = clock.monotonic() - began_at
        if waited_s >= lease_wait_s:
            brokers = [key.removeprefix(BROKERS_PREFIX) for key in leased if _is_broker(key)]
            who = f"broker {', '.join(brokers)}" if brokers else ", ".join(leased)
            raise CopyRefused(
                f"{who} holds a lease in the source, so the cluster is running: stop all brokers "
                "(SIGTERM), then copy again; if they were killed, wait for their session timeout"
            )
        progress("seconds waited for leases to end", int(waited_s), int(lease_wait_s))
        await clock.sleep(_LOOK_EVERY_S)
    if not any(entry.key == CLUSTER_KEY for entry in entries):
        raise CopyRefused("the source has no cluster: check its address and its namespace")
    if any(entry.key == MARK for entry in entries):
        raise CopyRefused("the source holds an incomplete copy: copy from the original store")
    return entries, revision


async def _require_empty(target: MetadataStore) -> None:
    held, _ = await target.range(PREFIX)
    if any(entry.key == MARK for entry in held):
        raise CopyRefused(
            "the target holds an incomplete copy of an earlier run: delete it (the SQLite file, "
            "or the keys or znodes below its namespace), then copy again"
        )
    if held:
        raise CopyRefused(
            f"the target is not empty, it has {len(held)} keys such as {held[0].key}: choose "
            "another file or namespace"
        )


async def _raise_revision(target: MetadataStore, revision: int, progress: Progress) -> None:
    """Makes the revision of the target at least that of the source."""
    _, reached = await target.range(MARK)
    start = reached
    while reached < revision:
        number = min(_AT_ONCE, revision - reached)
        commits = [_commit(target, (), [Put(MARK, b"%d" % each)]) for each in range(number)]
        reached = max(await asyncio.gather(*commits))
        progress("raised revisions", min(reached, revision) - start, revision - start)


async def _commit(
    target: MetadataStore, compares: Sequence[Compare], changes: Sequence[Put | Delete]
) -> int:
    for left in reversed(range(_BUSY_ATTEMPTS)):
        try:
            committed = await target.commit(compares, changes)
        except StoreBusy:
            if not left:
                raise
            continue
        if not committed.succeeded:
            raise CopyRefused(
                f"another program writes to the target, for example {changes[0].key}: stop it, "
                "empty the target, and copy again"
            )
        return committed.revision
    raise AssertionError("unreachable")


def _batches(values: dict[str, bytes]) -> Iterator[list[Put | Delete]]:
    batch: list[Put | Delete] = []
    size = 0
    for key, value in values.items():
        if batch and (len(batch) >= BATCH_KEYS or size + len(value) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(Put(key, value))
        size += len(value)
    if batch:
        yield batch


async def _verify(target: MetadataStore, values: dict[str, bytes]) -> int:
    """Compares the target with these values. Returns the revision of the mark."""
    held, _ = await target.range(PREFIX)
    marks = [entry.modify_revision for entry in held if entry.key == MARK]
    found = {entry.key: entry.value for entry in held if entry.key != MARK}
    wrong = [key for key in found.keys() | values.keys() if found.get(key) != values.get(key)]
    if not marks:
        wrong.append(MARK)
    if wrong:
        raise CopyRefused(
            f"{len(wrong)} keys differ in the target, for example {min(wrong)}: another program "
            "writes to it; stop it, empty the target, and copy again"
        )
    return marks[0]


def _state(entries: Sequence[KeyValue]) -> list[tuple[str, int]]:
    return [(entry.key, entry.modify_revision) for entry in entries]


def _is_broker(key: str) -> bool:
    return key.startswith(BROKERS_PREFIX)
