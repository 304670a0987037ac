"""The format of an encrypted file: a header, then frames in pages. Pure: bytes in, bytes out.

    header   4096 bytes, not encrypted: the topic key's name, the wrapped data key, a salt. There
             are two copies, each with a CRC: without the data key the whole file is lost
    pages    of 64 KiB, one after the other; no frame crosses the end of a page
    frame    marker, length, position in the plaintext, nonce, CRC of these (32 bytes in all), then
             the ciphertext and its tag (16 bytes)

The rest of storage sees the plaintext only, by positions in the plaintext. `EncryptedFile` finds
the page of a position by the position in the first frame of each page. The requirements, and how
the format meets them:

- *Synced bytes are never written again.* Each append seals its bytes as new frames after the last
  one. A format with fixed blocks would have to write the last block again with each append, and a
  power loss in that moment would tear records that were acknowledged long before.
- *No nonce is used twice with one key.* The key of a file is derived from the data key of its
  segment and from a random salt in its header, so each file has its own nonces. A nonce is 8 random
  bytes, drawn each time the file is opened, and a counter of the frames sealed since. Nothing about
  it is stored or read back, so it makes no difference whether the file was truncated, torn or
  repaired before. Two openings of one file draw the same 8 bytes with a chance of 2**-64.
- *A torn tail differs from rot.* An append that was interrupted leaves a frame that is not whole.
  The bytes after the last whole frame count as bytes of the plaintext that read as zeros: recovery
  finds an incomplete batch there and cuts it off. A whole frame whose tag is wrong is rot. It reads
  as an invalid batch of the frame's length (`unreadable`), so recovery treats it as damage, and the
  positions of all later batches stay right: each frame states its own position.
- *A frame is valid in one place only.* The tag also covers the topic id, the partition, the base
  offset, the kind of file, the position in the file and the header of the frame (`Place`). A block,
  or a whole file, of another segment or partition reads as rot. What remains possible to somebody
  who can write to the disk: to put back an older state of the same file, or to replace a file with
  an unencrypted one.
- *The batch CRCs stay.* They are inside, and are checked as before.
- *The size is known without the key.* Lengths and positions are in the frame headers. If the header
  of a frame is damaged, the next marker shows where the frames continue.

A page has space for a frame of at least `ROOM_MIN` bytes, otherwise the rest of it stays empty. So
the first frame of a batch always holds its whole header.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.ports import Buffer, Random
from penstock.records.batch import HEADER_SIZE, LAST_OFFSET_DELTA_START, RECORD_COUNT_START

HEADER_BYTES: Final = 4096
PAGE_BYTES: Final = 64 << 10
MAGIC: Final = b"\xffPENSEAL" + b"\xff\xff\xff\xff"
"""A batch cannot begin like this: its base offset would be negative and its length impossible. Nor
can an index, a list of aborted transactions or a snapshot."""
VERSION: Final = 1
MARKER: Final = b"\xf5\xeaLD"
TAG_BYTES: Final = 16
SALT_BYTES: Final = 16
CHECK_BYTES: Final = 16
DATA_KEY_BYTES: Final = 32
KEY_NAME_MAX: Final = 128
WRAPPED_MAX: Final = 1536

COPY_BYTES: Final = HEADER_BYTES // 2
_HEAD: Final = Struct(f">{len(MAGIC)}sBIHH{SALT_BYTES}s{CHECK_BYTES}s")
_FRAME: Final = Struct(">4sIQ12s")
_CRC_AT: Final = _FRAME.size
FRAME_HEAD_BYTES: Final = _CRC_AT + 4
FRAME_OVERHEAD: Final = FRAME_HEAD_BYTES + TAG_BYTES
ROOM_MIN: Final = FRAME_OVERHEAD + 64
PAGE_BYTES_MIN: Final = 2 * ROOM_MIN


class Aead(Protocol):
    """AES-GCM with one key."""

    def encrypt_into(
        self, nonce: Buffer, data: Buffer, associated_data: Buffer | None, buf: Buffer, /
    ) -> int:
        """Writes the ciphertext and its tag to `buf`."""

    def decrypt(self, nonce: Buffer, data: Buffer, associated_data: Buffer | None, /) -> bytes: ...

    def guess(self, nonce: Buffer, data: Buffer, /) -> bytes:
        """Decrypts without a check of the tag. The result may be anything."""


class FileCipher:
    """AES-GCM with the key of one file."""

    __slots__ = ("_key", "decrypt", "encrypt_into")

    def __init__(self, key: bytes) -> None:
        self._key = key
        cipher = AESGCM(key)
        self.encrypt_into = cipher.encrypt_into
        self.decrypt = cipher.decrypt

    def guess(self, nonce: Buffer, data: Buffer, /) -> bytes:
        # The first block of GCM's counter is for the tag.
        counter = modes.CTR(bytes(nonce) + (2).to_bytes(4, "big"))
        return Cipher(algorithms.AES(self._key), counter).decryptor().update(data)


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key as a key provider has wrapped it. Not secret."""

    key_name: str
    token: bytes
    check: bytes
    """Derived from the data key: shows whether a provider has returned the right one."""


@dataclass(frozen=True, slots=True)
class FileHeader:
    wrapped: WrappedKey
    salt: bytes
    page_bytes: int = PAGE_BYTES

    def encode(self) -> bytes:
        name, token = self.wrapped.key_name.encode(), self.wrapped.token
        if len(name) > KEY_NAME_MAX or len(token) > WRAPPED_MAX:
            raise ValueError(
                f"a wrapped data key has {len(token)} bytes and its key's name {len(name)}: at "
                f"most {WRAPPED_MAX} and {KEY_NAME_MAX} fit into the header of a file"
            )
        head = _HEAD.pack(
            MAGIC,
            VERSION,
            self.page_bytes,
            len(name),
            len(token),
            self.salt,
            self.wrapped.check,
        )
        body = (head + name + token).ljust(COPY_BYTES - 4, b"\0")
        return (body + crc32c(body).to_bytes(4, "big")) * 2


class NewerFormat(Exception):
    """A later version of Penstock has written this file."""


def decode_header(data: bytes) -> FileHeader | None:
    """Returns the header at the beginning of a file, from either copy; None if there is none.

    Raises `NewerFormat` if the header is sound and its version unknown.
    """
    for start in (0, COPY_BYTES):
        copy = data[start : start + COPY_BYTES]
        if len(copy) < COPY_BYTES or not copy.startswith(MAGIC):
            continue
        if crc32c(copy[:-4]) != int.from_bytes(copy[-4:], "big"):
            continue
        _, version, page_bytes, name_size, token_size, salt, check = _HEAD.unpack_from(copy)
        if version != VERSION:
            raise NewerFormat(f"its version is {version}, and {VERSION} is the latest known")
        name_end = _HEAD.size + name_size
        name, token = copy[_HEAD.size : name_end], copy[name_end : name_end + token_size]
        return FileHeader(WrappedKey(name.decode(), token, check), salt, page_bytes)
    return None


def is_torn_header(data: bytes, size: int, *, is_due: bool) -> bool:
    """Whether a file of this size, without a valid header, is one whose creation was interrupted.

    Nothing was written after the header, so nothing can be lost. Where no header `is_due`, zeros
    are none.
    """
    if size > HEADER_BYTES:
        return False
    return data[: len(MAGIC)] == MAGIC[: len(data)] or (is_due and not data.strip(b"\0"))


class Place(NamedTuple):
    """Where a file belongs. Its frames are valid nowhere else."""

    topic_id: str
    partition: int
    base_offset: int
    kind: str

    def encode(self) -> bytes:
        return f"{self.topic_id}\0{self.partition}\0{self.base_offset}\0{self.kind}\0".encode()


def derive_key(data_key: bytes, salt: bytes) -> bytes:
    """Returns the key of one file."""
    return HKDF(SHA256(), DATA_KEY_BYTES, salt, b"penstock: a file of a segment").derive(data_key)


def key_check(data_key: bytes) -> bytes:
    return HKDF(SHA256(), CHECK_BYTES, None, b"penstock: check of a data key").derive(data_key)


class Frame(NamedTuple):
    position: int
    """In the plaintext."""
    length: int
    start: int
    """In the file."""

    @property
    def end(self) -> int:
        return self.position + self.length

    @property
    def file_end(self) -> int:
        return self.start + self.length + FRAME_OVERHEAD


def associated_data(place: bytes, start: int, head: Buffer) -> bytes:
    """Returns what the tag of a frame covers besides its content."""
    return b"".join((place, start.to_bytes(8, "big"), head))


def seal_frame(
    cipher: Aead,
    place: bytes,
    data: Buffer,
    position: int,
    start: int,
    nonce: bytes,
    into: memoryview,
) -> None:
    """Writes a frame for the file at `start`, with `data` at `position` of the plaintext."""
    head = _FRAME.pack(MARKER, len(data), position, nonce)
    head += crc32c(head).to_bytes(4, "big")
    into[:FRAME_HEAD_BYTES] = head
    cipher.encrypt_into(nonce, data, associated_data(place, start, head), into[FRAME_HEAD_BYTES:])


def open_frame(cipher: Aead, place: bytes, frame: Frame, sealed: memoryview) -> bytes:
    """Returns the plaintext of a frame. Raises `InvalidTag` if it is not what was sealed there."""
    head = sealed[:FRAME_HEAD_BYTES]
    return cipher.decrypt(
        head[_CRC_AT - 12 : _CRC_AT],
        sealed[FRAME_HEAD_BYTES:],
        associated_data(place, frame.start, head),
    )


def unreadable(cipher: Aead, frame: Frame, sealed: memoryview, random: Random) -> bytes:
    """Returns what a frame with a wrong tag reads as: a batch of its length that cannot be valid.

    Its base offset is negative and it has no magic byte. The rest is random, so that it matches no
    CRC of a batch that the frame is a part of. Only the number of records is what the frame seems
    to hold: recovery never uses the offsets of a damaged batch again.
    """
    length = frame.length
    if length < HEADER_SIZE:
        return random.bytes(length)
    head = bytearray(HEADER_SIZE)
    head[:12] = b"\xff" * 8 + (length - 12).to_bytes(4, "big")
    nonce = sealed[_CRC_AT - 12 : _CRC_AT]
    guess = cipher.guess(nonce, sealed[FRAME_HEAD_BYTES : FRAME_HEAD_BYTES + HEADER_SIZE])
    for start in (LAST_OFFSET_DELTA_START, RECORD_COUNT_START):
        head[start : start + 4] = guess[start : start + 4]
    return bytes(head) + random.bytes(length - HEADER_SIZE)


def find_frames(page: bytes, start: int, page_bytes: int, floor: int = 0) -> list[Frame]:
    """Returns the whole frames of a page that begins at `start` of the file. `page` may end early,
    at the end of the file. No frame begins below `floor` in the plaintext."""
    frames: list[Frame] = []
    at, size = 0, len(page)
    while size - at >= FRAME_OVERHEAD:
        marker, length, position, _ = _FRAME.unpack_from(page, at)
        end = at + FRAME_OVERHEAD + length
        if (
            marker == MARKER
            and length
            and end <= size
            and end <= page_bytes
            and position >= floor
            and crc32c(page[at : at + _CRC_AT])
            == int.from_bytes(page[at + _CRC_AT : at + FRAME_HEAD_BYTES], "big")
        ):
            frames.append(Frame(position, length, start + at))
            at, floor = end, position + length
            continue
        at = page.find(MARKER, at + 1)
        if at < 0:
            break
    return frames
