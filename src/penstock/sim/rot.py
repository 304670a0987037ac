"""Bit rot in the files of a closed log, and what it excuses.

Rot in data must be told from a torn tail: below the recovery point on disk it is damage, and every
other batch stays readable. Above it the two look the same, so the tail from there on may go, as it
would in a crash, and the model is told so. Rot in anything else is excused nothing: all of it can
be rebuilt or refused.
"""

from __future__ import annotations

from typing import Final

from penstock.records.batch import CorruptBatch, iter_batches
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
