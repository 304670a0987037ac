"""The offset checkpoint file is read as it was written, and every damage of it is found."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.storage.config import LogConfig
from penstock.storage.directory import LogDirectory
from penstock.storage.errors import CorruptFile
from penstock.storage.offset_checkpoint import (
    OFFSETS,
    LogOffsets,
    decode_offsets,
    encode_offsets,
    read_offsets,
    write_offsets,
)

from .log_bench import NOW_MS, ROOT, append, new_bench

INT = st.integers(0, 2**63 - 1)
NAMES = st.from_regex(r"[a-zA-Z0-9._-]{1,20}-[0-9]{1,4}", fullmatch=True)
IDS = st.from_regex(r"[A-Za-z0-9_-]{22}", fullmatch=True)
ALL = st.dictionaries(NAMES, st.builds(LogOffsets, IDS, INT, INT, INT), max_size=4)


@settings(deadline=None, max_examples=50)
@given(ALL)
def test_offsets_survive_encoding_and_decoding(offsets: dict[str, LogOffsets]) -> None:
    assert decode_offsets(encode_offsets(offsets)) == offsets


@settings(deadline=None, max_examples=60)
@given(ALL, st.data())
def test_damage_is_found(offsets: dict[str, LogOffsets], data: st.DataObject) -> None:
    """A flipped bit or a cut is reported as CorruptFile, and as nothing else."""
    sound = encode_offsets(offsets)
    position = data.draw(st.integers(0, len(sound) - 1))
    flipped = bytearray(sound)
    flipped[position] ^= 1 << data.draw(st.integers(0, 7))
    damaged = [sound[:position]] if position < len(sound) - 1 else []
    if bytes(flipped).lower() != sound.lower() and flipped.strip() != sound.strip():
        damaged.append(bytes(flipped))
    for each in damaged:
        with pytest.raises(CorruptFile):
            decode_offsets(each)


def test_the_file_is_replaced_as_a_whole() -> None:
    """After a power cut or an error it has the old contents or the new."""
    bench = new_bench()
    assert read_offsets(bench.disk, ROOT) == {}
    old, new = ({"t-0": LogOffsets("id", 1, at, at)} for at in (1, 2))
    write_offsets(bench.disk, ROOT, old)
    bench.lose_power()
    assert read_offsets(bench.disk, ROOT) == old
    bench.sim.fail_next("rename", 5)
    with pytest.raises(OSError, match="rename"):
        write_offsets(bench.disk, ROOT, new)
    assert read_offsets(bench.disk, ROOT) == old


def test_a_file_that_cannot_be_decoded_is_ignored() -> None:
    """The logs open as if nothing had been stored. The next round writes the file again."""
    bench = new_bench()
    directory = LogDirectory(bench.disk, ROOT)
    log = directory.create("t", 0, topic_id="id", config=LogConfig(), now_ms=NOW_MS)
    append(log, 3)
    directory.note_offsets({"t-0": LogOffsets("id", log.generation, 0, 2)})
    bench.kill()
    for content, committed in ((None, 2), (b"rubbish", 0)):
        if content is not None:
            bench.write_file(f"{ROOT}/{OFFSETS}", content)
        directory = LogDirectory(bench.disk, ROOT)
        directory.open_all(lambda *_: LogConfig(), NOW_MS)
        (log,) = directory
        assert (log.end_offset, log.restored_high_watermark) == (3, committed)
        bench.kill()


def test_a_log_that_failed_and_was_recovered_has_a_new_generation() -> None:
    """The file may count records that were not synced and are gone."""
    bench = new_bench()
    directory = LogDirectory(bench.disk, ROOT)
    log = directory.create("t", 0, topic_id="id", config=LogConfig(), now_ms=NOW_MS)
    append(log, 3)
    before = log.generation
    directory.let_go("t", 0, "the disk failed")
    directory.recover("t", 0, LogConfig(), NOW_MS)
    assert directory.reopen("t", 0, LogConfig(), NOW_MS).generation > before
