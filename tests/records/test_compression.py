"""Compression: every codec against an independent implementation, and with hostile input.

The other side is the standard library for gzip, and Arrow's own copies of the snappy, lz4 and zstd
libraries. So no codec is checked only against itself.
"""

from __future__ import annotations

import gzip
import re
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.batch import Codec, CorruptBatch
from penstock.records.compression import DecompressedTooLarge, compress, decompress
from penstock.testing.slowness import patient

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
MIB = 2**20

TEXT = b"".join(b"%d bottles of beer on the wall, " % number for number in range(400))
PAYLOADS = {
    "empty": b"",
    "one byte": b"x",
    "zeros": bytes(100_000),
    "text": TEXT,
    "incompressible": bytes(zlib.crc32(bytes([n % 251, n // 251])) & 0xFF for n in range(5000)),
    "one block": b"ab" * 16384,
    "one block and a byte": b"ab" * 16384 + b"c",
    "several blocks": TEXT * 20,
}


def arrow_compress(name: str, data: bytes) -> bytes:
    return bytes(pa.compress(data, codec=name, asbytes=True))


def arrow_decompress(name: str, data: bytes, size: int) -> bytes:
    return bytes(pa.decompress(data, decompressed_size=size, codec=name, asbytes=True))


def arrow_stream(name: str, data: bytes) -> bytes:
    """Compresses with Arrow's streaming encoder, which does not write the size."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, name) as stream:
        for start in range(0, len(data), 7001):
            stream.write(data[start : start + 7001])
    return bytes(sink.getvalue())


def xerial_blocks(framed: bytes) -> Iterator[bytes]:
    """Yields the blocks of a xerial stream, read as its format describes."""
    assert framed[:16] == XERIAL
    position = 16
    while position < len(framed):
        (size,) = struct.unpack_from(">i", framed, position)
        assert 0 < size <= len(framed) - position - 4
        yield framed[position + 4 : position + 4 + size]
        position += 4 + size


def snappy_length(block: bytes) -> int:
    """Returns the uncompressed length at the start of a raw snappy block."""
    length = shift = 0
    for byte in block:
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    return length


def xerial(*chunks: bytes, header: bytes = XERIAL) -> bytes:
    blocks = [arrow_compress("snappy", chunk) for chunk in chunks]
    return header + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def foreign_decode(codec: Codec, data: bytes, size: int) -> bytes:
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return gzip.decompress(data)
        case Codec.SNAPPY:
            return b"".join(
                arrow_decompress("snappy", block, snappy_length(block))
                for block in xerial_blocks(data)
            )
        case Codec.LZ4:
            return arrow_decompress("lz4", data, size)
        case Codec.ZSTD:
            return arrow_decompress("zstd", data, size)


FOREIGN: dict[str, tuple[Codec, Callable[[bytes], bytes]]] = {
    "gzip": (Codec.GZIP, gzip.compress),
    "gzip of two members": (
        Codec.GZIP,
        lambda data: gzip.compress(data[:100]) + gzip.compress(data[100:]),
    ),
    "gzip with a file name": (
        Codec.GZIP,
        lambda data: b"\x1f\x8b\x08\x08" + bytes(6) + b"name\x00" + gzip.compress(data)[10:],
    ),
    "raw snappy": (Codec.SNAPPY, lambda data: arrow_compress("snappy", data)),
    "xerial": (Codec.SNAPPY, lambda data: xerial(data[:5], data[5:4000], data[4000:])),
    "xerial of one block": (Codec.SNAPPY, xerial),
    "lz4": (Codec.LZ4, lambda data: arrow_compress("lz4", data)),
    "lz4 streamed": (Codec.LZ4, lambda data: arrow_stream("lz4", data)),
    "zstd": (Codec.ZSTD, lambda data: arrow_compress("zstd", data)),
    "zstd streamed": (Codec.ZSTD, lambda data: arrow_stream("zstd", data)),
}


@pytest.mark.parametrize("data", PAYLOADS.values(), ids=PAYLOADS)
@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_codec_restores_the_payload(codec: Codec, data: bytes, kind: type) -> None:
    """Works with any kind of buffer."""
    packed = compress(codec, kind(data))
    assert decompress(codec, kind(packed), len(data)) == data


@pytest.mark.parametrize("data", PAYLOADS.values(), ids=PAYLOADS)
@pytest.mark.parametrize("codec", COMPRESSED)
def test_an_independent_decoder_restores_the_payload(codec: Codec, data: bytes) -> None:
    assert foreign_decode(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize("data", PAYLOADS.values(), ids=PAYLOADS)
@pytest.mark.parametrize(("codec", "encode"), FOREIGN.values(), ids=FOREIGN)
def test_we_decode_the_output_of_independent_encoders(
    codec: Codec, encode: Callable[[bytes], bytes], data: bytes
) -> None:
    """The size limit is exactly the size of the payload."""
    assert decompress(codec, encode(data), len(data)) == data


@given(data=st.binary(max_size=300) | st.binary(max_size=30).map(lambda part: part * 50))
@settings(deadline=None, max_examples=30)
@pytest.mark.parametrize("codec", COMPRESSED)
def test_random_payloads_are_restored_by_both_decoders(codec: Codec, data: bytes) -> None:
    """Random payloads, decoded by an independent decoder and by ours."""
    packed = compress(codec, data)
    assert foreign_decode(codec, packed, len(data)) == data
    assert decompress(codec, packed, len(data)) == data


@pytest.mark.parametrize(
    ("codec", "levels"), [(Codec.GZIP, range(1, 10)), (Codec.ZSTD, [1, 3, 10, 19])]
)
def test_a_higher_level_compresses_better(codec: Codec, levels: list[int]) -> None:
    """Every level restores the payload, and the highest compresses better than the lowest."""
    data = b" ".join(b"%d" % (number * number * 7919 % 10_007) for number in range(20_000))
    packed = [compress(codec, data, level) for level in levels]
    assert all(decompress(codec, item, len(data)) == data for item in packed)
    assert len(packed[-1]) < len(packed[0])


@pytest.mark.parametrize("level", [1, 9])
def test_lz4_levels_restore_the_payload(level: int) -> None:
    """lz4 accepts a level too."""
    assert foreign_decode(Codec.LZ4, compress(Codec.LZ4, TEXT, level), len(TEXT)) == TEXT


def test_lz4_frames_can_be_read_by_java() -> None:
    """Kafka's Java reader supports only version 1, independent blocks and no dictionary."""
    packed = compress(Codec.LZ4, PAYLOADS["several blocks"])
    assert packed[:4] == bytes.fromhex("04224d18")
    flags, descriptor = packed[4], packed[5]
    assert flags >> 6 == 1, "frame version"
    assert flags & 0x20, "blocks must not refer to each other"
    assert not flags & 0x03, "no reserved bit, no dictionary id"
    assert 4 <= descriptor >> 4 <= 7, "block size code"
    assert not descriptor & 0x8F, "reserved bits"


def test_snappy_is_written_in_xerial_blocks() -> None:
    """Java reads snappy only with xerial framing; its blocks hold up to 32 KiB."""
    data = PAYLOADS["several blocks"]
    blocks = list(xerial_blocks(compress(Codec.SNAPPY, data)))
    assert len(blocks) > 1
    assert all(snappy_length(block) <= 32 * 1024 for block in blocks)


def test_xerial_header_versions_do_not_matter() -> None:
    """Some producers write the two version numbers in the wrong byte order."""
    header = b"\x82SNAPPY\x00" + struct.pack("<ii", 1, 1)
    assert decompress(Codec.SNAPPY, xerial(TEXT, header=header), len(TEXT)) == TEXT


@pytest.mark.parametrize("codec", list(Codec))
def test_the_size_limit_is_exact(codec: Codec) -> None:
    """A payload of exactly the limit passes; one byte more does not."""
    packed = compress(codec, TEXT)
    assert decompress(codec, packed, len(TEXT)) == TEXT
    with pytest.raises(DecompressedTooLarge):
        decompress(codec, packed, len(TEXT) - 1)


@pytest.mark.parametrize(("codec", "encode"), FOREIGN.values(), ids=FOREIGN)
def test_the_size_limit_holds_for_streams_of_other_encoders(
    codec: Codec, encode: Callable[[bytes], bytes]
) -> None:
    """Including streams that do not state their size."""
    for cap in (0, 1, 4001, len(TEXT) - 1):
        with pytest.raises(DecompressedTooLarge):
            decompress(codec, encode(TEXT), cap)


def test_decompressed_too_large_is_a_corrupt_batch() -> None:
    """Code that handles bad batches handles decompression bombs too."""
    assert issubclass(DecompressedTooLarge, CorruptBatch)


def gzip_bomb() -> bytes:
    """Returns 1 GiB of zeros: a deflate block that ends on a byte boundary can be repeated."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = deflate.compress(bytes(MIB)) + deflate.flush(zlib.Z_FULL_FLUSH)
    again = deflate.compress(bytes(MIB)) + deflate.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08" + bytes(7) + block + again * 1023 + b"\x03\x00"


def zstd_bomb(content_size: bytes = b"", window: int = 0x70) -> bytes:
    """Returns 1 GiB in one frame of run-length blocks of 128 KiB, four bytes each."""
    descriptor = bytes([0xE0]) + content_size if content_size else bytes([0x00, window])
    run = (128 * 1024) << 3 | 1 << 1
    blocks = (run.to_bytes(3, "little") + b"\x00") * 8191
    return bytes.fromhex("28b52ffd") + descriptor + blocks + (run | 1).to_bytes(3, "little") + b"\0"


def lz4_bomb() -> bytes:
    """Returns 1 GiB in identical independent blocks of 4 MiB."""
    block = arrow_compress("lz4_raw", bytes(4 * MIB))
    head = bytes.fromhex("04224d18") + bytes([0x60, 0x70, 0x73])
    return head + (struct.pack("<I", len(block)) + block) * 256 + bytes(4)


def snappy_claim(size: int) -> bytes:
    """Returns a raw block that claims `size` bytes and has one."""
    out = bytearray()
    while size > 0x7F:
        out.append(0x80 | size & 0x7F)
        size >>= 7
    return bytes([*out, size]) + b"\x00x"


def xerial_of(block: bytes, times: int = 1) -> bytes:
    return XERIAL + (struct.pack(">i", len(block)) + block) * times


BOMBS: dict[str, tuple[Codec, Callable[[], bytes]]] = {
    "gzip": (Codec.GZIP, gzip_bomb),
    "gzip members": (Codec.GZIP, lambda: gzip.compress(bytes(MIB)) * 1024),
    "zstd": (Codec.ZSTD, zstd_bomb),
    "zstd with a window of 128 MiB": (Codec.ZSTD, lambda: zstd_bomb(window=0x88)),
    "zstd that admits it": (Codec.ZSTD, lambda: zstd_bomb((2**30).to_bytes(8, "little"))),
    "zstd that claims more": (Codec.ZSTD, lambda: zstd_bomb((2**62).to_bytes(8, "little"))),
    "zstd frames": (Codec.ZSTD, lambda: arrow_compress("zstd", bytes(MIB)) * 1024),
    "lz4": (Codec.LZ4, lz4_bomb),
    "raw snappy": (Codec.SNAPPY, lambda: arrow_compress("snappy", bytes(64 * MIB))),
    "raw snappy that claims": (Codec.SNAPPY, lambda: snappy_claim(2**32 - 1)),
    "xerial": (Codec.SNAPPY, lambda: xerial_of(arrow_compress("snappy", bytes(MIB)), 1024)),
    "xerial that claims": (Codec.SNAPPY, lambda: xerial_of(snappy_claim(2**32 - 1))),
}


def peak_rss_bytes() -> int:
    status = Path("/proc/self/status").read_text("ascii")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


@pytest.mark.parametrize(("codec", "build"), BOMBS.values(), ids=BOMBS)
def test_decompression_bombs_are_refused_early(codec: Codec, build: Callable[[], bytes]) -> None:
    """Decompression far beyond the limit stops early, with little memory and time used."""
    bomb = build()
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # resets the peak
    memory = peak_rss_bytes()
    started = time.thread_time()
    with pytest.raises(CorruptBatch):
        decompress(codec, bomb, MIB)
    assert time.thread_time() - started < patient(0.5)
    assert peak_rss_bytes() - memory < 16 * MIB


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_truncated_stream_is_refused(codec: Codec) -> None:
    """A truncated stream is refused, unless all of its payload is in the prefix."""
    data = TEXT[:700]
    packed = compress(codec, data)
    for size in range(len(packed)):
        try:
            found = decompress(codec, packed[:size], MIB)
        except CorruptBatch:
            continue
        # A xerial header alone is a stream without blocks; lz4 may lack its end mark.
        assert found == data or (codec is Codec.SNAPPY and size == 16 and found == b""), size


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_damage_is_refused_or_the_result_is_within_the_limit(codec: Codec, flip: int) -> None:
    """A changed byte gives `CorruptBatch` or a payload within the limit, nothing else."""
    packed = compress(codec, TEXT[:700])
    for position in range(len(packed)):
        damaged = bytearray(packed)
        damaged[position] ^= flip
        try:
            found = decompress(codec, damaged, 4096)
        except CorruptBatch:
            continue
        assert len(found) <= 4096


MAGICS = {
    Codec.GZIP: b"\x1f\x8b\x08\x00" + bytes(6),
    Codec.SNAPPY: XERIAL,
    Codec.LZ4: bytes.fromhex("04224d18604082"),
    Codec.ZSTD: bytes.fromhex("28b52ffd"),
}


@given(noise=st.binary(max_size=80), with_magic=st.booleans())
@settings(deadline=None, max_examples=100)
@pytest.mark.parametrize("codec", COMPRESSED)
def test_noise_is_refused_or_the_result_is_within_the_limit(
    codec: Codec, noise: bytes, with_magic: bool
) -> None:
    """Noise, even after a correct magic number, raises nothing but `CorruptBatch`."""
    data = MAGICS[codec] + noise if with_magic else noise
    try:
        found = decompress(codec, data, 512)
    except CorruptBatch:
        return
    assert len(found) <= 512


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1])
def test_xerial_block_sizes_are_checked(size: int) -> None:
    """A block size that is negative or beyond the data is refused."""
    with pytest.raises(CorruptBatch):
        decompress(Codec.SNAPPY, XERIAL + struct.pack(">i", size) + b"abc", MIB)
