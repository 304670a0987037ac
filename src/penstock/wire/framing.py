"""Splits a byte stream into frames: four bytes of length, then that many bytes.

The reader does no I/O. The caller passes the bytes of each read to it, and gets the frames that are
now complete. Frames are views of writable memory: a broker stamps offsets into the record batches
of a Produce request in place.

Every request passes through here, so copies matter:

- The complete frames in a read are copied once, all together, and returned as slices of that copy.
- A bytearray that ends where a frame ends is used without a copy.
- A caller that is done with the frames before it reuses the memory can borrow them without a copy.
- A frame that spans several reads is gathered in separate memory. That memory is at most `GROWTH`
  times what has arrived, and beyond `LATE_BYTES` at most `LATE_GROWTH` times. So a peer that
  announces 100 MiB but sends nothing costs nothing, and one that sends half of it costs 100 MiB. A
  frame of a megabyte gets its full size after the first read.
- A caller that can choose where to read to can read the rest of such a frame directly into its
  memory: `tail`, then `filled`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.wire.errors import ProtocolError

GROWTH: Final = 8
LATE_GROWTH: Final = 2
LATE_BYTES: Final = 2 << 20
LEAN_BYTES: Final = 64 << 10
"""While memory is short, at most this much is allocated ahead."""

_LENGTH: Final = Struct(">i")
_PREFIX: Final = _LENGTH.size
_unpack: Final = _LENGTH.unpack_from


class FrameTooLarge(ProtocolError):
    """A length is negative or over the limit. The rest of the stream cannot be read."""


class FrameReader:
    """`frame_bytes_max` may change between reads, for example after authentication."""

    __slots__ = ("_error", "_gathered", "buffered", "frame_bytes_max", "lean", "tail", "wanted")

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.lean = False
        """Set while memory is short: allocate little ahead, even if that costs more copying."""
        self.wanted = 0
        """The size of the unfinished frame, including its length field; 0 if not known yet."""
        self.buffered = 0
        """The bytes received of the unfinished frame."""
        self.tail: memoryview | None = None
        """Where the next bytes of the unfinished frame belong. Never empty, never past its end.

        None until more than the length field has arrived.
        """
        self._gathered = bytearray()
        self._error: FrameTooLarge | None = None

    @property
    def error(self) -> FrameTooLarge | None:
        """Set after a bad length. From then on `feed` raises it."""
        return self._error

    @property
    def held(self) -> int:
        """The bytes of memory allocated for the unfinished frame."""
        return len(self._gathered)

    def feed(
        self, data: bytes | bytearray | memoryview, *, borrow: bool = False
    ) -> list[memoryview]:
        """Returns the frames that are complete with this data.

        The caller must not change a bytearray afterwards. With `borrow` the frames are slices of
        the data if possible, and valid as long as the data is.

        Raises FrameTooLarge for a bad length. If there are good frames before it in the same data,
        they are returned first: `error` is set, and the next call raises it.
        """
        if self._error is not None:
            raise self._error
        size = len(data)
        limit = self.frame_bytes_max
        frames: list[memoryview] = []
        start = 0
        if self.buffered:
            start = self._gather(data, frames)
        elif _PREFIX <= size <= _PREFIX + limit and size == _PREFIX + _unpack(data)[0]:
            # One read with exactly one frame is by far the most common case.
            whole = data if borrow or type(data) is bytearray else bytearray(data)
            return [memoryview(whole)[_PREFIX:]]
        position = start
        ends = []
        while size - position >= _PREFIX:
            length = _unpack(data, position)[0]
            if not 0 <= length <= limit:
                self._error = self._bad(length)
                break
            if position + _PREFIX + length > size:
                self.wanted = _PREFIX + length
                break
            position += _PREFIX + length
            ends.append(position - start)
        if position < size and self._error is None:
            self._put(memoryview(data)[position:])
        if ends:
            whole = data if start == 0 and position == size else memoryview(data)[start:position]
            view = memoryview(whole if borrow or type(whole) is bytearray else bytearray(whole))
            begin = _PREFIX
            for end in ends:
                frames.append(view[begin:end])
                begin = end + _PREFIX
        if self._error is not None and not frames:
            raise self._error
        return frames

    def filled(self, size: int) -> memoryview | None:
        """Accepts `size` bytes that were read into `tail`. Returns the frame if it is complete."""
        tail = self.tail
        assert tail is not None
        self.buffered += size
        if size < len(tail):
            self.tail = tail[size:]
            return None
        if self.buffered == self.wanted:
            return self._take()
        self._aim()
        return None

    def discard(self) -> None:
        """Drops the unfinished frame: the rest of it will not arrive."""
        self._gathered = bytearray()
        self.tail = None
        self.buffered = self.wanted = 0

    def _gather(self, data: bytes | bytearray | memoryview, frames: list[memoryview]) -> int:
        """Continues the unfinished frame. Returns how many bytes of the data belong to it."""
        view = memoryview(data)
        taken = 0
        if not self.wanted:
            taken = min(_PREFIX - self.buffered, len(view))
            self._put(view[:taken])
            if self.buffered < _PREFIX:
                return taken
            length = _unpack(self._gathered)[0]
            if not 0 <= length <= self.frame_bytes_max:
                self._error = self._bad(length)
                raise self._error
            self.wanted = _PREFIX + length
        missing = self.wanted - self.buffered
        rest = view[taken : taken + missing]
        if len(rest):
            self._put(rest)
        if self.buffered == self.wanted:
            frames.append(self._take())
        return taken + len(rest)

    def _put(self, piece: memoryview) -> None:
        begin = self.buffered
        self.buffered += len(piece)
        if self.buffered > len(self._gathered):
            self._enlarge(begin)
        # Assigning to a view avoids the copy that assigning to a bytearray makes first.
        memoryview(self._gathered)[begin : self.buffered] = piece
        self._aim()

    def _aim(self) -> None:
        if _PREFIX < self.buffered < self.wanted:
            if self.buffered == len(self._gathered):
                self._enlarge(self.buffered)
            self.tail = memoryview(self._gathered)[self.buffered :]

    def _enlarge(self, keep: int) -> None:
        size = _PREFIX
        if self.wanted:
            grown = min(self.buffered * GROWTH, max(LATE_BYTES, self.buffered * LATE_GROWTH))
            if self.lean:
                grown = self.buffered + min(self.buffered, LEAN_BYTES)
            size = min(self.wanted, grown)
        larger = bytearray(size)
        memoryview(larger)[:keep] = memoryview(self._gathered)[:keep]
        self._gathered = larger

    def _take(self) -> memoryview:
        frame = memoryview(self._gathered)[_PREFIX:]
        self.discard()
        return frame

    def _bad(self, length: int) -> FrameTooLarge:
        return FrameTooLarge(
            f"a frame of {length} bytes was announced; the limit is {self.frame_bytes_max}."
            " Either this is not the Kafka protocol, or the limit must be raised"
        )
