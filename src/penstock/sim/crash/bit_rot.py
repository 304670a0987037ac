"""Flips bits in the files of a closed log, and tells the model which losses are allowed then.

Rot in data must be distinguished from a torn tail. Below what is known to be synced, rot is damage,
and every other batch stays readable. The same holds everywhere if the process was only killed.
After a power loss rot and a torn tail look the same above the synced offset, so the tail from there
on may be lost, as in a crash, and the model allows it. Rot in any other file allows no loss: it can
be rebuilt or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random  # noqa: TID251 - only for the type: instances are seeded
from typing import Final

from penstock.records.batch import HEADER_SIZE, CorruptBatch, iter_batches
from penstock.sim.crash.log_process import DIRECTORY, LogProcess
from penstock.sim.disk.disk import SimDisk
from penstock.storage.checkpoints import Checkpoint, decode_checkpoint, read_file
from penstock.storage.files import LOG_CHECKPOINT, parse_offset_name
from penstock.storage.offset_checkpoint import valid_offsets
from penstock.storage.sealed_format import (
    FRAME_HEAD_BYTES,
    HEADER_BYTES,
    FileCipher,
    FileHeader,
    decode_header,
    derive_key,
    find_frames,
)

KINDS: Final = (
    ".log",
    ".log",
    ".index",
    ".timeindex",
    ".txnindex",
    ".snapshot",
    "leader-epoch-checkpoint",
    "penstock-checkpoint",
    "penstock-offsets",
)

UNPROTECTED: Final = frozenset((*range(8), *range(12, 16)))
"""Bytes of a batch's header that its CRC does not cover: base offset and leader epoch."""
LENGTH: Final = frozenset(range(8, 12))
NONCE_BYTES: Final = 12
NONCE_END_BYTES: Final = 4
"""What follows the nonce in the head of a frame: a CRC."""


def rot_some_file(process: LogProcess, *, clean: bool) -> None:
    """Flips one bit of a file of a random kind, if there is one.

    The checkpoint rots only after a clean stop: it distinguishes a torn tail from damage, and after
    a crash without it nothing else can.
    """
    kind = KINDS[process.draws.randrange(0, len(KINDS))]
    if not clean and process.draws.random() < 0.6:
        kind = ".log"  # Where it matters most how the process ended.
    if kind == LOG_CHECKPOINT and not clean:
        return
    files = process.disk.files()
    rotted = None
    if kind == ".log" and not clean:
        rotted = _rot_above_recovery_point(process)
    rotted = rotted or process.disk.rot_random(kind)
    if rotted is None:
        return
    path, position, bit = rotted
    process.tell(f"bit {bit} of byte {position} of {path} flips")
    process.count(f"rot in {kind}")
    process.rotted.add(kind)
    if kind == ".log":
        _excuse_tail(process, path, position, files[path])


def forge_some_segment(process: LogProcess) -> bool:
    """Puts the file of another partition in the place of a segment, if one is encrypted. Its
    records must not be served."""
    files = process.disk.durable_files()
    for path in sorted(files, key=_base_of, reverse=True):
        forged = process.sealed.forged(path, files[path]) if _base_of(path) >= 0 else None
        if forged is not None:
            process.disk.corrupt(path, 0, forged)
            process.tell(f"another partition's file is in the place of {path}")
            process.count("forged segments")
            process.rotted.add(".log")
            return True
    return False


def _rot_above_recovery_point(process: LogProcess) -> tuple[str, int, int] | None:
    """Flips a bit of a batch that was synced but is above the recovery point, and returns which.
    None if there is no such batch."""
    point = _checkpoint(process).recovery_point
    found: list[tuple[str, int, int]] = []
    for path, data in process.disk.durable_files().items():
        if path.startswith(DIRECTORY) and _base_of(path) >= 0:
            with suppress(CorruptBatch):
                for start, header in iter_batches(process.sealed.plaintext(path, data)):
                    if header.base_offset >= point:
                        found.append((path, start, header.size))
    if not found:
        return None
    path, start, size = found[process.draws.randrange(0, len(found))]
    position, bit = start + process.draws.randrange(0, size), process.draws.randrange(0, 8)
    position = process.sealed.position_of(process.disk.durable_files()[path], position)
    process.disk.rot(path, position, bit)
    return path, position, bit


def _checkpoint(process: LogProcess) -> Checkpoint:
    return decode_checkpoint(read_file(process.disk, f"{DIRECTORY}/{LOG_CHECKPOINT}") or b"")


def _excuse_tail(process: LogProcess, path: str, position: int, data: bytes) -> None:
    """Allows the loss of the tail where rot looks like a torn tail.

    A CRC covers neither a batch's base offset nor its leader epoch. Where nothing else protects
    them, in bytes that were never promised, rot in them cannot be detected, so the flip is undone.
    """
    checkpoint = _checkpoint(process)
    promised = checkpoint.recovery_point
    known = process.known()
    if (valid := valid_offsets(known, checkpoint)) is not None:
        promised = max(promised, valid.synced_offset)
    offset = parse_offset_name(path.rpartition("/")[2], ".log") or 0
    inside = after = 0
    plain, at = process.sealed.plaintext(path, data), position
    is_sealed = plain is not data
    in_frame = process.sealed.frame_at(data, position) if is_sealed else None
    if in_frame is not None:
        at = in_frame[0].position
    elif is_sealed:
        return  # The other copy of the header, or padding.
    try:
        for start, header in iter_batches(plain):
            offset, inside, after = header.base_offset, at - start, start + header.size
            if inside < header.size:
                break
    except CorruptBatch:
        return
    if offset < checkpoint.recovery_point:
        return
    process.count("rot above the recovery point")
    if in_frame is not None:
        # All of it is protected. Without its header, the last frame looks like an append that was
        # interrupted.
        inside = min(LENGTH) if in_frame[1] else HEADER_SIZE
    if inside in UNPROTECTED:
        process.disk.corrupt(path, position, data[position : position + 1])
        process.tell("  and back")
    # With a wrong length the last batch looks as if it was not written completely.
    ends_the_log = after == len(plain) and path == max(process.disk.files(), key=_base_of)
    looks_torn = not process.cache_is_intact or (inside in LENGTH and ends_the_log)
    if offset >= promised and looks_torn:
        process.excuse_loss_from(offset)


def _base_of(path: str) -> int:
    offset = parse_offset_name(path.rpartition("/")[2], ".log")
    return -1 if offset is None else offset


def rot_above_recovery_point(
    disk: SimDisk,
    directory: str,
    names: Sequence[str],
    draws: Random,
    data_key: Callable[[bytes], bytes] | None = None,
) -> str | None:
    """Flips one bit in the records of a batch that is on disk, is at or above the stored recovery
    point, and has a valid batch after it, so that it cannot be a torn tail. Returns which, or None
    if no log has such a batch. The header stays as it is. `data_key` unwraps the data keys of
    encrypted logs, if there are any."""
    durable = disk.durable_files()
    found: list[tuple[str, int, int]] = []
    for name in names:
        checkpoint = durable.get(f"{directory}/{name}/{LOG_CHECKPOINT}")
        # Without a checkpoint nothing is known to be on disk: every batch is above the
        # recovery point.
        point = 0 if checkpoint is None else decode_checkpoint(checkpoint).recovery_point
        for path, data in durable.items():
            if not path.startswith(f"{directory}/{name}/") or not path.endswith(".log"):
                continue
            header = decode_header(data) if data_key is not None else None
            if header is None or data_key is None:
                batches = _sound_batches(data)
            else:
                batches = _sealed_batches(data, header, data_key(header.wrapped.token))
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


def _sealed_batches(data: bytes, header: FileHeader, secret: bytes) -> list[tuple[int, int, int]]:
    """Returns the same for an encrypted file. Batches of several frames are left out."""
    cipher = FileCipher(derive_key(secret, header.salt))
    batches: list[tuple[int, int, int]] = []
    for start in range(HEADER_BYTES, len(data), header.page_bytes):
        for frame in find_frames(data[start : start + header.page_bytes], start, header.page_bytes):
            begin = frame.start + FRAME_HEAD_BYTES
            nonce = data[begin - NONCE_END_BYTES - NONCE_BYTES : begin - NONCE_END_BYTES]
            batch = _sound_batches(cipher.guess(nonce, data[begin : begin + frame.length]))
            if len(batch) == 1 and batch[0][1] == frame.length:
                batches.append((begin, frame.length, batch[0][2]))
    return batches


def _sound_batches(data: bytes) -> list[tuple[int, int, int]]:
    """Returns position, size and base offset of each batch, up to the first that is invalid."""
    batches: list[tuple[int, int, int]] = []
    try:
        for start, header in iter_batches(data):
            batches.append((start, header.size, header.base_offset))
    except CorruptBatch:
        pass
    return batches
