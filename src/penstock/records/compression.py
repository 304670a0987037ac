"""Compresses and decompresses record data with Kafka's four codecs.

Kafka uses them as follows:

    gzip    ordinary gzip; several members in a row are one stream
    snappy  the Java client's "xerial" framing (a 16-byte header, then length-prefixed raw blocks),
            or one raw block without framing, which librdkafka writes; we write the first and read
            both
    lz4     the LZ4 frame format with independent blocks (the Java client refuses linked blocks)
    zstd    ordinary zstd frames

A few compressed bytes from an untrusted client could expand to gigabytes. So the output goes into
a buffer that never exceeds the caller's limit. A size that the data claims is only a hint for the
first buffer, and is ignored if the codec could not reach it. If the buffer is too small, a larger
one is used, up to the limit; then `DecompressedTooLarge` is raised. The repeated work costs at most
a third of the final pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from mmap import mmap
from struct import Struct
from typing import Final, Protocol

import cramjam

from penstock.records.batch import Buffer, Codec, CorruptBatch

DECOMPRESSED_BYTES_MAX: Final = 256 << 20
"""The default limit for one decompressed batch.

A request frame has at most 100 MiB, so an uncompressed batch is never larger. A compressed batch
may have more than twice as much. Anything larger is much more likely an attack than a batch.
"""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + bytes((0, 0, 0, 1, 0, 0, 0, 1))
_XERIAL_BLOCK_BYTES: Final = 32 << 10
"""The block size of Java's stream. Its readers allocate a block, so blocks are not larger here."""
_INT32: Final = Struct(">i")
_GZIP_LENGTH: Final = Struct("<I")

_FIRST_GUESS_RATIO: Final = 6
_FIRST_GUESS_BYTES_MIN: Final = 4 << 10
_GROWTH: Final = 4
_SNAPPY_RATIO_MAX: Final = 22
"""A snappy copy element makes 64 bytes of 3, which is the best ratio of any element."""
_GZIP_RATIO_MAX: Final = 1032
_LZ4_RATIO_MAX: Final = 255
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_TRUSTED_BYTES: Final = 16 << 20
"""A codec that could reach almost any size gets at most this for its first buffer."""
_MAPPED_BYTES_MIN: Final = 1 << 20
_BUFFER_TOO_SMALL: Final = "failed to write whole buffer"

_LEVELS: Final = {Codec.GZIP: (1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-131072, 22)}
"""Kafka's ranges. Snappy and no compression have no levels and ignore a given one, as in Kafka."""


class DecompressedTooLarge(CorruptBatch):
    """The data may be sound, but it is larger than the caller allows."""


class _DecompressInto(Protocol):
    def __call__(self, data: memoryview, output: memoryview, /) -> int: ...


_Take = Callable[[int], memoryview]
"""Allocates writable memory of a given size."""


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compresses `data` as Kafka's clients expect it. Each codec has its usual default level."""
    _check_level(codec, level)
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data, 6 if level is None else level))
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            # Level 1 is the fast compressor; from 3 on lz4 searches harder.
            compressor = cramjam.lz4.Compressor(1 if level is None else level, False, False)
            compressor.compress(bytes(data))
            return bytes(compressor.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, 3 if level is None else level))


def decompress(codec: Codec, data: Buffer, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Decompresses `data` to at most `max_bytes`. Raises `CorruptBatch` if that fails."""
    return bytes(decompress_view(codec, data, max_bytes))


def decompress_view(
    codec: Codec, data: Buffer, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> memoryview:
    """Does the same as `decompress` without a copy: uncompressed data is returned as a view."""
    return _decompress_to(codec, memoryview(data), max_bytes, _new_bytes)


@contextmanager
def decompressed(codec: Codec, data: Buffer, max_bytes: int) -> Iterator[memoryview]:
    """Does the same as `decompress_view`, but frees the memory at the end of the context.

    Other threads can run while a large result is allocated and freed. With a `bytearray` of many
    megabytes they would wait until it is zeroed, and again until it is freed.
    """
    memory = _Mapped()
    view = _decompress_to(codec, memoryview(data), max_bytes, memory.take)
    try:
        yield view
    finally:
        view.release()
        memory.give_back()


class _Mapped:
    """Memory for one result at a time. Large blocks are mapped directly from the system."""

    def __init__(self) -> None:
        self._view: memoryview | None = None
        self._mapped: mmap | None = None

    def take(self, size: int) -> memoryview:
        self.give_back()
        if size <= _MAPPED_BYTES_MIN:
            return memoryview(bytearray(size))
        self._mapped = mmap(-1, size)
        self._view = memoryview(self._mapped)
        return self._view

    def give_back(self) -> None:
        mapped, self._mapped = self._mapped, None
        if mapped is not None and self._view is not None:
            self._view.release()
            # A traceback may still refer to a slice of it: then it is freed with the traceback.
            with suppress(BufferError):
                mapped.close()


def _new_bytes(size: int) -> memoryview:
    return memoryview(bytearray(size))


def _decompress_to(codec: Codec, data: memoryview, max_bytes: int, take: _Take) -> memoryview:
    match codec:
        case Codec.NONE:
            if len(data) > max_bytes:
                raise _too_large(codec, max_bytes)
            return data
        case Codec.GZIP:
            return _decompress(codec, cramjam.gzip.decompress_into, data, max_bytes, take)
        case Codec.SNAPPY:
            return _decompress_snappy(data, max_bytes, take)
        case Codec.LZ4:
            return _decompress(codec, cramjam.lz4.decompress_into, data, max_bytes, take)
        case Codec.ZSTD:
            return _decompress(codec, cramjam.zstd.decompress_into, data, max_bytes, take)


def _check_level(codec: Codec, level: int | None) -> None:
    low, high = _LEVELS.get(codec, (None, None))
    if level is not None and low is not None and high is not None and not low <= level <= high:
        raise ValueError(
            f"{codec.name.lower()} has no compression level {level}; "
            f"give {low} to {high}, or none for the default"
        )


def _too_large(codec: Codec, max_bytes: int) -> DecompressedTooLarge:
    return DecompressedTooLarge(
        f"{codec.name.lower()} data is larger than the limit of {max_bytes} bytes when "
        "decompressed; raise max_bytes if you trust the producer"
    )


def _decompress(
    codec: Codec,
    decompress_into: _DecompressInto,
    data: memoryview,
    max_bytes: int,
    take: _Take,
) -> memoryview:
    capacity = min(max_bytes, _first_guess(codec, data))
    while True:
        output = take(capacity)
        try:
            size = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if _BUFFER_TOO_SMALL not in str(error):
                raise CorruptBatch(f"{codec.name.lower()} data is damaged: {error}") from None
        else:
            return output[:size]
        if capacity >= max_bytes:
            raise _too_large(codec, max_bytes)
        capacity = min(max_bytes, capacity * _GROWTH)


def _first_guess(codec: Codec, data: memoryview) -> int:
    guess = _FIRST_GUESS_RATIO * len(data)
    if codec == Codec.GZIP and len(data) > 18:
        claimed: int = _GZIP_LENGTH.unpack_from(data, len(data) - 4)[0]
        if claimed <= _GZIP_RATIO_MAX * len(data):
            guess = claimed
    elif codec == Codec.ZSTD:
        guess = max(guess, min(_zstd_claimed_bytes(data), _TRUSTED_BYTES))
    elif codec == Codec.LZ4:
        guess = min(_lz4_bytes_max(data) or guess, _TRUSTED_BYTES)
    return max(guess, _FIRST_GUESS_BYTES_MIN)


def _zstd_claimed_bytes(data: memoryview) -> int:
    """Returns the content size in the first frame's header, or 0 if there is none."""
    if len(data) < 5 or bytes(data[:4]) != _ZSTD_MAGIC:
        return 0
    descriptor = data[4]
    single_segment = bool(descriptor & 0x20)
    position = 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    size = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    claimed = int.from_bytes(data[position : position + size], "little")
    return claimed + 256 if size == 2 else claimed


def _lz4_bytes_max(data: memoryview) -> int:
    """Returns the most bytes that the blocks of the first frame can hold, or 0 if unknown.

    Clients write no content size. But they use blocks of one size, mostly 64 KiB, and the blocks
    can be counted without decompressing them.
    """
    if len(data) < 7 or bytes(data[:4]) != _LZ4_MAGIC:
        return 0
    flags = data[4]
    block_bytes_max = 1 << (8 + 2 * (data[5] >> 4 & 7))
    position = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    total = 0
    while position + 4 <= len(data):
        size = int.from_bytes(data[position : position + 4], "little")
        if size == 0:
            break
        stored = size & 0x7FFFFFFF
        total += min(block_bytes_max, stored * (1 if size >> 31 else _LZ4_RATIO_MAX))
        position += 4 + stored + (4 if flags & 0x10 else 0)
    return total


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES])
        out += _INT32.pack(len(block))
        out += memoryview(block)
    return bytes(out)


def _decompress_snappy(data: memoryview, max_bytes: int, take: _Take) -> memoryview:
    framed = bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC
    blocks = _xerial_blocks(data) if framed else [data]
    sizes = [_snappy_block_bytes(block) for block in blocks]
    total = sum(sizes)
    if total > max_bytes:
        raise _too_large(Codec.SNAPPY, max_bytes)
    view = take(total)
    position = 0
    for block, size in zip(blocks, sizes, strict=True):
        try:
            written = cramjam.snappy.decompress_raw_into(block, view[position : position + size])
        except cramjam.DecompressionError as error:
            raise CorruptBatch(f"snappy data is damaged: {error}") from None
        if written != size:
            raise CorruptBatch(f"a snappy block should have {size} bytes, but has {written}")
        position += size
    return view[:]


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    blocks = []
    position = 0
    while position < len(data):
        # Streams may be concatenated, each with its header. A length is never negative, so it
        # cannot start like the header does.
        if bytes(data[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            if position > len(data):
                raise CorruptBatch("snappy data ends inside its stream header")
            continue
        if position + 4 > len(data):
            raise CorruptBatch("snappy data ends inside a block length")
        size: int = _INT32.unpack_from(data, position)[0]
        position += 4
        if size < 0 or position + size > len(data):
            raise CorruptBatch(
                f"a snappy block should have {size} bytes, but {len(data) - position} are left"
            )
        blocks.append(data[position : position + size])
        position += size
    return blocks


def _snappy_block_bytes(block: memoryview) -> int:
    """Returns the length that a raw block claims. Raises if snappy could not reach it."""
    if not len(block):
        raise CorruptBatch("a snappy block is empty: even empty data takes one byte")
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy data is damaged: {error}") from None
    if size > _SNAPPY_RATIO_MAX * len(block):
        raise CorruptBatch(f"a snappy block of {len(block)} bytes cannot hold {size}")
    return size
