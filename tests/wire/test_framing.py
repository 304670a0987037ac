"""Frames are found in a stream, wherever it was split."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.framing import FrameReader, FrameTooLarge


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


@settings(deadline=None, max_examples=200)
@given(
    bodies=st.lists(st.binary(max_size=40), max_size=8),
    cuts=st.lists(st.integers(0, 300), max_size=20),
    own=st.booleans(),
)
def test_the_same_frames_are_found_wherever_the_stream_is_split(
    bodies: list[bytes], cuts: list[int], own: bool
) -> None:
    """Each frame is returned as soon as it is complete."""
    stream = framed(*bodies)
    reader = FrameReader(100)
    found: list[bytes] = []
    ends = [len(framed(*bodies[: n + 1])) for n in range(len(bodies))]
    edges = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    for start, end in pairwise(edges):
        piece = stream[start:end]
        frames = reader.feed(bytearray(piece) if own else piece)
        found += [bytes(frame) for frame in frames]
        assert len(found) == sum(whole <= end for whole in ends)
        assert reader.buffered == end - max([0, *(whole for whole in ends if whole <= end)])
    assert found == bodies


@settings(deadline=None, max_examples=200)
@given(
    bodies=st.lists(st.binary(max_size=300), max_size=6),
    reads=st.lists(st.integers(1, 200), min_size=1, max_size=10),
)
def test_reading_into_the_frame_buffer_gives_the_same_frames(
    bodies: list[bytes], reads: list[int]
) -> None:
    """Reads into `tail` where there is one, and into a scratch buffer otherwise, lose nothing."""
    stream = framed(*bodies)
    reader = FrameReader(1000)
    found: list[bytes] = []
    position = turn = 0
    while position < len(stream):
        tail = reader.tail
        size = min(reads[turn % len(reads)], len(stream) - position, len(tail or stream))
        piece = stream[position : position + size]
        if tail is not None:
            tail[:size] = piece
            frame = reader.filled(size)
            frames = [] if frame is None else [frame]
        else:
            frames = reader.feed(memoryview(piece))
        found += [bytes(frame) for frame in frames]
        position += size
        turn += 1
        if reader.tail is not None:
            assert len(reader.tail) <= reader.wanted - reader.buffered
    assert found == bodies
    assert (reader.buffered, reader.wanted, reader.tail) == (0, 0, None)


def test_a_large_frame_is_read_into_its_own_buffer() -> None:
    """Once an eighth of a frame has arrived, the rest is not copied a second time."""
    body = bytes(range(256)) * 4096
    stream = framed(body)
    reader = FrameReader(1 << 21)
    assert reader.feed(memoryview(stream)[: 256 << 10]) == []
    assert reader.wanted == len(stream)
    assert reader.tail is not None
    assert len(reader.tail) == len(stream) - (256 << 10)
    buffer = reader.tail.obj
    reader.tail[:] = stream[256 << 10 :]
    frame = reader.filled(len(stream) - (256 << 10))
    assert frame is not None
    assert frame.obj is buffer
    assert frame == body


def test_frames_may_arrive_byte_by_byte() -> None:
    """Each frame is returned with its last byte."""
    reader = FrameReader(100)
    results = [reader.feed(bytes([byte])) for byte in framed(b"hello", b"")]
    assert [bytes(frame) for frames in results for frame in frames] == [b"hello", b""]
    assert [bool(frames) for frames in results] == [False] * 8 + [True] + [False] * 3 + [True]


@pytest.mark.parametrize("pieces", [1, 3])
def test_frames_are_writable_and_independent(pieces: int) -> None:
    """Writing into a frame changes neither the input nor other frames."""
    stream = framed(b"aaaa", b"bbbb")
    reader = FrameReader(100)
    frames = []
    step = -(-len(stream) // pieces)
    for start in range(0, len(stream), step):
        frames += reader.feed(stream[start : start + step])
    frames[0][:] = b"XXXX"
    assert bytes(frames[1]) == b"bbbb"
    assert stream == framed(b"aaaa", b"bbbb")
    assert reader.feed(framed(b"cc"))[0].tobytes() == b"cc"
    assert bytes(frames[0]) == b"XXXX"


def test_a_bytearray_is_not_copied() -> None:
    """A bytearray with whole frames is not copied."""
    data = bytearray(framed(b"abc", b"def"))
    frames = FrameReader(100).feed(data)
    assert [frame.obj is data for frame in frames] == [True, True]


@pytest.mark.parametrize("length", [-1, 101, 0x7FFFFFFF, -0x80000000])
@pytest.mark.parametrize("split", [4, 2])
def test_bad_lengths_are_refused_at_once(length: int, split: int) -> None:
    """A negative length, or one over the limit, is refused before anything is stored."""
    reader = FrameReader(100)
    head = struct.pack(">i", length)
    if split < 4:
        assert reader.feed(head[:split]) == []
    with pytest.raises(FrameTooLarge, match=f"{length} bytes was announced; the limit is 100"):
        reader.feed(head[4 - split :] if split < 4 else head)
    assert reader.error is not None
    with pytest.raises(FrameTooLarge):
        reader.feed(framed(b"too late"))


def test_frames_before_a_bad_length_are_returned_first() -> None:
    """Valid requests before garbage in one read are not lost; the error is set."""
    reader = FrameReader(100)
    frames = reader.feed(framed(b"good") + b"GET / HTTP/1.1\r\n")
    assert [bytes(frame) for frame in frames] == [b"good"]
    assert reader.error is not None
    assert reader.buffered == 0
    with pytest.raises(FrameTooLarge):
        reader.feed(b"")


def test_the_limit_itself_is_allowed_and_can_change() -> None:
    """A frame of exactly the limit passes; a changed limit applies from then on."""
    reader = FrameReader(4)
    assert len(reader.feed(framed(b"1234"))) == 1
    reader.frame_bytes_max = 5
    assert len(reader.feed(framed(b"12345"))) == 1
    with pytest.raises(FrameTooLarge):
        reader.feed(framed(b"123456"))


def test_an_announced_length_allocates_nothing() -> None:
    """100 MiB announced but not sent use no memory; sent bytes use about their own size."""
    reader = FrameReader(200 << 20)
    tracemalloc.start()
    assert reader.feed(struct.pack(">i", 100 << 20)) == []
    announced = tracemalloc.get_traced_memory()[1]
    for _ in range(64):
        assert reader.feed(bytes(16384)) == []
    sent = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert announced < 4096
    assert sent < 2.5 * (1 << 20)


def test_borrowed_frames_share_the_memory_of_the_input() -> None:
    """Except a frame that an earlier read began; incomplete data is copied."""
    reader = FrameReader(1000)
    stream = framed(b"first", b"second", b"third", b"fourth")
    memory = bytearray(stream[:34])
    assert [bytes(frame) for frame in reader.feed(memory[:6], borrow=True)] == []
    frames = reader.feed(memoryview(memory)[6:], borrow=True)
    assert [bytes(frame) for frame in frames] == [b"first", b"second", b"third"]
    memory[:] = bytes(len(memory))
    assert [bytes(frame) for frame in frames] == [b"first", bytes(6), bytes(5)]
    assert [bytes(frame) for frame in reader.feed(stream[len(memory) :])] == [b"fourth"]


def test_memory_held_is_a_few_times_what_has_arrived() -> None:
    """However large the announced frame is; zero if no frame has begun."""
    reader = FrameReader(1 << 30)
    assert reader.held == 0
    reader.feed(framed(bytes(1 << 20))[:104])
    assert 104 <= reader.held <= 8 * 104
    reader.feed(framed(bytes(1 << 20))[104:])
    assert reader.held == 0
