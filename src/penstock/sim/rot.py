"""Bit rot in the files of a closed log, and what it excuses.

Rot in data must be told from a torn tail: below the recovery point on disk it is damage, and every
other batch stays readable. Above it the two look the same, so the tail from there on may go, as it
would in a crash, and the model is told so. Rot in anything else is excused nothing: all of it can
be rebuilt or refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random  # noqa: TID251 - only named: it comes seeded
from typing import Final

from penstock.records.batch import HEADER_SIZE, CorruptBatch, iter_batches
from penstock.sim.disk import SimDisk
from penstock.sim.log_process import DIRECTORY
from penstock.sim.log_rig import LogRig
from penstock.storage.checkpoints import decode_checkpoint, read_file
from penstock.storage.files import LOG_CHECKPOINT, parse_offset_name

KINDS: Final = (
    ".log",
    ".log",
    ".index",
    ".timeindex",
    ".txnindex",
    ".snapshot",
    "leader-epoch-checkpoint",
    "penstock-checkpoint",
)

UNPROTECTED: Final = frozenset((*range(8), *range(12, 16)))
"""Bytes of a batch's header that its CRC does not cover: base offset and leader epoch."""


def rot_some_file(rig: LogRig, *, clean: bool) -> None:
    """Flip one bit of a file of the kind drawn, if there is one.

    The checkpoint rots only after a clean stop: it is what tells a torn tail from damage, and a
    crash that takes both leaves nothing to tell them by.
    """
    kind = KINDS[rig.draws.randrange(0, len(KINDS))]
    if kind == LOG_CHECKPOINT and not clean:
        return
    files = rig.disk.files()
    rotted = rig.disk.rot_random(kind)
    if rotted is None:
        return
    path, position, bit = rotted
    rig.tell(f"bit {bit} of byte {position} of {path} flips")
    rig.count(f"rot in {kind}")
    rig.rotted.add(kind)
    if kind == ".log":
        _excuse_tail(rig, path, position, files[path])


def _excuse_tail(rig: LogRig, path: str, position: int, data: bytes) -> None:
    """A CRC covers neither a batch's offset nor its epoch. Where nothing else vouches for them, in
    bytes that were never promised, rot there cannot be known for what it is: it is taken back."""
    checkpoint = decode_checkpoint(read_file(rig.disk, f"{DIRECTORY}/{LOG_CHECKPOINT}") or b"")
    offset = parse_offset_name(path.rpartition("/")[2], ".log") or 0
    inside = 0
    try:
        for start, header in iter_batches(data):
            offset, inside = header.base_offset, position - start
            if inside < header.size:
                break
    except CorruptBatch:
        return
    if offset < checkpoint.recovery_point:
        return
    rig.excuse_loss_from(offset)
    if inside in UNPROTECTED:
        rig.disk.corrupt(path, position, data[position : position + 1])
        rig.tell("  and back")


def rot_above_recovery_point(
    disk: SimDisk, directory: str, places: Sequence[str], draws: Random
) -> str | None:
    """Flip one bit of the records of a batch that is on disk, lies at or above the stored recovery
    point, and has another sound batch behind it, so that it cannot be a torn tail. Returns what it
    was, None where no log has such a batch. The header stays as it is."""
    durable = disk.durable_files()
    found: list[tuple[str, int, int]] = []
    for place in places:
        checkpoint = durable.get(f"{directory}/{place}/{LOG_CHECKPOINT}")
        # Without a checkpoint nothing is known to be on disk: everything is above.
        point = 0 if checkpoint is None else decode_checkpoint(checkpoint).recovery_point
        for path, data in durable.items():
            if not path.startswith(f"{directory}/{place}/") or not path.endswith(".log"):
                continue
            batches = _sound_batches(data)
            found += [
                (path, start + HEADER_SIZE, size - HEADER_SIZE)
                for start, size, offset in batches[:-1]
                if offset >= point and size > HEADER_SIZE
            ]
    if not found:
        return None
    path, start, size = found[draws.randrange(len(found))]
    position = start + draws.randrange(size)
    disk.rot(path, position, draws.randrange(8))
    return f"byte {position} of {path}"


def _sound_batches(data: bytes) -> list[tuple[int, int, int]]:
    """Position, size and base offset of each, up to the first that is not sound."""
    batches: list[tuple[int, int, int]] = []
    try:
        for start, header in iter_batches(data):
            batches.append((start, header.size, header.base_offset))
    except CorruptBatch:
        pass
    return batches
