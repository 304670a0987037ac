"""An encrypted file behaves like a plain one, and keeps no plaintext and no nonce twice."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ports import Buffer
from penstock.sim.disk.disk import SimDisk
from penstock.storage.encrypted_file import EncryptedFile
from penstock.storage.sealed_format import (
    FRAME_OVERHEAD,
    HEADER_BYTES,
    PAGE_BYTES_MIN,
    Aead,
    FileCipher,
    Place,
)

KEY = bytes(range(32))
PLACE = Place("id", 3, 100, ".log").encode()
PAGE = 300


class Bytes:
    """Randomness that repeats with its seed."""

    def __init__(self, seed: int = 1) -> None:
        self._random = Random(seed)

    def bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def uniform(self) -> float:
        return self._random.random()


class Bench:
    """One encrypted file on a simulated disk, and all nonces that it ever used."""

    def __init__(self, page_bytes: int = PAGE, cipher: Aead | None = None) -> None:
        self.disk = SimDisk(Random(1), Random(2))
        self.page_bytes = page_bytes
        self.random = Bytes()
        self.cipher = cipher or OnceOnly(FileCipher(KEY))
        file = self.disk.open("/f", create=True)
        file.pwrite(bytes(HEADER_BYTES), 0)
        file.fsync()
        file.close()
        self.disk.sync_directory("/")
        self.file = self.open()

    def open(self, place: bytes = PLACE) -> EncryptedFile:
        raw = self.disk.open("/f")
        return EncryptedFile(raw, self.cipher, place, self.page_bytes, self.random)

    def reopen(self) -> None:
        self.file.close()
        self.file = self.open()

    @property
    def raw(self) -> bytes:
        return self.disk.files()["/f"]


class OnceOnly:
    """A cipher that refuses a nonce which it has seen with other data."""

    def __init__(self, cipher: FileCipher) -> None:
        self._cipher = cipher
        self.seen: dict[bytes, bytes] = {}

    def encrypt_into(
        self, nonce: Buffer, data: Buffer, associated_data: Buffer | None, buf: Buffer, /
    ) -> int:
        assert self.seen.setdefault(bytes(nonce), bytes(data)) == bytes(data), "a nonce repeats"
        return self._cipher.encrypt_into(nonce, data, associated_data, buf)

    def decrypt(self, nonce: Buffer, data: Buffer, associated_data: Buffer | None, /) -> bytes:
        return self._cipher.decrypt(nonce, data, associated_data)

    def guess(self, nonce: Buffer, data: Buffer, /) -> bytes:
        return self._cipher.guess(nonce, data)


def content(bench: Bench) -> bytes:
    return bench.file.pread(bench.file.size() + 10, 0)


STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 900), st.just(0)),
    st.tuples(st.just("write"), st.integers(1, 300), st.integers(0, 2000)),
    st.tuples(st.just("truncate"), st.just(0), st.integers(0, 2500)),
    st.tuples(st.just("read"), st.integers(0, 700), st.integers(0, 2500)),
    st.tuples(st.just("reopen"), st.just(0), st.just(0)),
    st.tuples(st.just("elsewhere"), st.integers(1, 300), st.just(0)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=30), st.sampled_from([PAGE_BYTES_MIN, 300, 1000, 64 << 10]))
def test_it_behaves_like_a_plain_file(steps: list[tuple[str, int, int]], page_bytes: int) -> None:
    """Whatever is written, truncated and read, by one handle or several, in any order."""
    bench, plain = Bench(page_bytes), bytearray()
    for number, (name, size, at) in enumerate(steps):
        position = at
        data = bytes([number % 255 + 1]) * size
        if name == "append":
            assert bench.file.pwrite(data, len(plain)) == size
            plain += data
        elif name == "write":
            position = min(position, len(plain) + 200)
            assert bench.file.pwrite(data, position) == size
            plain += bytes(max(0, position - len(plain)))
            plain[position : position + size] = data
        elif name == "truncate":
            position = min(position, len(plain) + 100)
            bench.file.truncate(position)
            plain = plain[:position] + bytes(max(0, position - len(plain)))
        elif name == "read":
            assert bench.file.pread(size, position) == plain[position : position + size]
        elif name == "reopen":
            bench.reopen()
        else:
            # A reader that was opened before sees what another handle appends.
            reader = bench.open()
            bench.file.pwrite(data, len(plain))
            plain += data
            assert reader.pread(len(plain) + 1, 0) == plain
            reader.close()
        assert bench.file.size() == len(plain)
    assert content(bench) == plain
    bench.reopen()
    assert content(bench) == plain


def test_the_plaintext_is_not_on_the_disk() -> None:
    """Neither what was written nor what was truncated."""
    bench = Bench()
    bench.file.pwrite(b"a secret" * 100, 0)
    assert content(bench) == b"a secret" * 100
    assert b"secret" not in bench.raw
    assert len(bench.raw) > HEADER_BYTES + 800


def test_a_frame_is_never_written_again() -> None:
    """What is on the disk stays as it is while the file grows: a torn write cannot reach it."""
    bench = Bench()
    before = b""
    for number in range(60):
        bench.file.pwrite(b"%d," % number * (1 + number % 9), bench.file.size())
        assert bench.raw.startswith(before)
        before = bench.raw


def test_after_a_truncation_other_bytes_get_other_nonces() -> None:
    """At the same position, by the same handle and by a new one. `OnceOnly` checks it."""
    bench = Bench()
    sealed = set()
    for number in range(40):
        bench.file.truncate(0)
        bench.file.pwrite(b"batch %02d" % number, 0)
        sealed.add(bench.raw[HEADER_BYTES:])
        if number % 3 == 0:
            bench.reopen()
    assert len(sealed) == 40


def test_a_flipped_bit_is_noticed_wherever_it_is() -> None:
    """The bytes of its frame are not returned, and all others are, at their old positions."""
    bench = Bench()
    frames = [bytes([65 + number]) * 70 for number in range(12)]
    for frame in frames:
        bench.file.pwrite(frame, bench.file.size())
    bench.file.fsync()
    whole = content(bench)
    for position in range(HEADER_BYTES, len(bench.raw)):
        bench.disk.rot("/f", position, position % 8)
        bench.reopen()
        data = content(bench)
        for number, frame in enumerate(frames):
            piece = data[number * 70 : number * 70 + 70]
            # In the last frame, a damaged header looks like an append that was interrupted.
            assert piece == frame or frame[:20] not in piece, position
        assert sum(data[at : at + 70] == whole[at : at + 70] for at in range(0, 840, 70)) >= 11
        bench.disk.rot("/f", position, position % 8)
    bench.reopen()
    assert content(bench) == whole


def test_a_frame_is_valid_in_its_own_place_only() -> None:
    """Not in another partition, not in another segment, not at another position of the file."""
    bench = Bench(cipher=FileCipher(KEY))
    bench.file.pwrite(b"a" * 70, 0)
    bench.file.pwrite(b"b" * 70, 70)
    bench.file.fsync()
    for place in (("id", 4, 100, ".log"), ("id", 3, 101, ".log"), ("other", 3, 100, ".log")):
        other = bench.open(Place(*place).encode())
        assert b"a" * 5 not in other.pread(140, 0)
        other.close()
    size = 70 + FRAME_OVERHEAD
    first = bench.raw[HEADER_BYTES : HEADER_BYTES + size]
    bench.disk.corrupt("/f", HEADER_BYTES + size, first)
    bench.reopen()
    assert b"a" * 5 not in bench.file.pread(140, 70)


@pytest.mark.parametrize("keep", range(0, 200, 7))
def test_a_torn_append_reads_as_incomplete(keep: int) -> None:
    """The file ends with bytes that are no batch. Once they are cut off, appends go on."""
    bench = Bench()
    bench.file.pwrite(b"x" * 100, 0)
    end = len(bench.raw)
    bench.file.pwrite(b"y" * 300, 100)
    raw = bench.disk.open("/f")
    raw.truncate(end + keep)
    raw.close()
    bench.reopen()
    assert bench.file.pread(100, 0) == b"x" * 100
    whole = bench.file.pread(1000, 100).rstrip(b"\0")
    assert whole == b"y" * len(whole)
    assert bool(keep) == (bench.file.size() > 100)
    bench.file.truncate(100)
    bench.file.pwrite(b"z" * 250, 100)
    bench.reopen()
    assert content(bench) == b"x" * 100 + b"z" * 250


def test_a_failed_write_can_be_cut_off_and_repeated() -> None:
    """As the log does on a full disk: the size shows that something was left behind."""
    bench = Bench()
    bench.file.pwrite(b"x" * 100, 0)
    bench.disk.leave_room(50)
    with pytest.raises(OSError, match="space"):
        bench.file.pwrite(b"y" * 100, 100)
    assert bench.file.size() > 100
    bench.file.truncate(100)
    assert bench.file.size() == 100
    bench.disk.leave_room(1 << 20)
    bench.file.pwrite(b"z" * 100, 100)
    bench.reopen()
    assert content(bench) == b"x" * 100 + b"z" * 100
