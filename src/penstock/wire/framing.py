"""Frames out of a byte stream: four bytes of length, then that many bytes.

The reader does no I/O. It is fed whatever a read returned and gives back the frames that are now
whole, as views of writable memory: a broker stamps offsets into the record batches of a Produce
request where they lie.

Costs, since every request passes here. The whole frames in a read are copied once, however many
they are, and come out as slices of that copy; a bytearray that ends where a frame ends is taken
over uncopied, and a caller who is done with the frames before it uses the memory again may borrow
them uncopied. A frame that spans reads is gathered in memory of its own. That memory is at most
`GROWTH` times what has arrived, beyond `LATE_BYTES` at most `LATE_GROWTH` times. So a peer that
announces 100 MiB but sends nothing has cost nothing, one that sends half of them has cost those
100, and a frame of a megabyte has its full size after the first read. A caller that can choose
where to read to takes the rest of such a frame straight into its place: `tail`, then `filled`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.wire.errors import ProtocolError

GROWTH: Final = 8
LATE_GROWTH: Final = 2
LATE_BYTES: Final = 2 << 20
LEAN_BYTES: Final = 64 << 10
"""What is taken ahead at most while memory is short."""

_LENGTH: Final = Struct(">i")
_PREFIX: Final = _LENGTH.size
_unpack: Final = _LENGTH.unpack_from


class FrameTooLarge(ProtocolError):
    """A length that is negative or over the limit: from here on the stream means nothing."""


class FrameReader:
    """`frame_bytes_max` may be changed between reads, as when a connection has authenticated."""

    __slots__ = ("_error", "_gathered", "buffered", "frame_bytes_max", "lean", "tail", "wanted")

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.lean = False
        """Memory is short: take as little ahead as can be, even if more must be copied for it."""
        self.wanted = 0
        """Bytes the frame that is begun will have, prefix included; 0 while that is not known."""
        self.buffered = 0
        """Bytes held for a frame that is not whole yet."""
        self.tail: memoryview | None = None
        """Where the next bytes belong if a frame is well begun; never empty, never past its end."""
        self._gathered = bytearray()
        self._error: FrameTooLarge | None = None

    @property
    def error(self) -> FrameTooLarge | None:
        """Set once the stream has gone wrong; then `feed` raises it."""
        return self._error

    @property
    def held(self) -> int:
        """Bytes of memory taken for a frame that is not whole yet."""
        return len(self._gathered)

    def feed(
        self, data: bytes | bytearray | memoryview, *, borrow: bool = False
    ) -> list[memoryview]:
        """The frames that are whole with this data; a bytearray must not be touched afterwards.

        With `borrow` they are slices of the data where they can be, good for as long as that is.

        Raises FrameTooLarge for a bad length. If good frames stand before it in the same data they
        are returned first: then `error` is set, and the next call raises it.
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
            # One read, one frame: by far the commonest case.
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
        """That many bytes were put at the start of `tail`; the frame, if it is whole now."""
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
        """Forget what has come of a frame: the rest of it will not come."""
        self._gathered = bytearray()
        self.tail = None
        self.buffered = self.wanted = 0

    def _gather(self, data: bytes | bytearray | memoryview, frames: list[memoryview]) -> int:
        """Go on with the frame begun earlier; returns how much of the data belonged to it."""
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
        # Through a view: a bytearray would first make a copy of the piece.
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
