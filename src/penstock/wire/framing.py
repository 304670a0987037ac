"""Frames out of a byte stream: four bytes of length, then that many bytes.

The reader does no I/O. It is fed whatever a read returned and gives back the frames that are now
whole, as views of writable memory: a broker stamps offsets into the record batches of a Produce
request where they lie.

Costs, since every request passes here. The whole frames in a read are copied once, however many
they are, and come out as slices of that copy; a bytearray that ends where a frame ends is taken
over uncopied. A frame that
spans reads is gathered in a bytearray that grows as bytes arrive, so each byte is copied once and
a peer that announces 100 MiB but sends nothing has cost nothing.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.wire.errors import ProtocolError

_LENGTH: Final = Struct(">i")
_PREFIX: Final = _LENGTH.size
_unpack: Final = _LENGTH.unpack_from


class FrameTooLarge(ProtocolError):
    """A length that is negative or over the limit: from here on the stream means nothing."""


class FrameReader:
    """`frame_bytes_max` may be changed between reads, as when a connection has authenticated."""

    __slots__ = ("_error", "_gathered", "_wanted", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._gathered = bytearray()
        self._wanted = 0
        """Bytes the gathered frame will have, prefix included; 0 while that is not known."""
        self._error: FrameTooLarge | None = None

    @property
    def error(self) -> FrameTooLarge | None:
        """Set once the stream has gone wrong; then `feed` raises it."""
        return self._error

    @property
    def buffered(self) -> int:
        """Bytes held for a frame that is not whole yet."""
        return len(self._gathered)

    def feed(self, data: bytes | bytearray) -> list[memoryview]:
        """The frames that are whole with this data; a bytearray must not be touched afterwards.

        Raises FrameTooLarge for a bad length. If good frames stand before it in the same data they
        are returned first: then `error` is set, and the next call raises it.
        """
        if self._error is not None:
            raise self._error
        size = len(data)
        limit = self.frame_bytes_max
        frames: list[memoryview] = []
        start = 0
        if self._gathered:
            start = self._gather(data, frames)
        elif _PREFIX <= size <= _PREFIX + limit and size == _PREFIX + _unpack(data)[0]:
            # One read, one frame: by far the commonest case.
            return [memoryview(data if type(data) is bytearray else bytearray(data))[_PREFIX:]]
        position = start
        ends = []
        while size - position >= _PREFIX:
            length = _unpack(data, position)[0]
            if not 0 <= length <= limit:
                self._error = self._bad(length)
                break
            if position + _PREFIX + length > size:
                self._wanted = _PREFIX + length
                break
            position += _PREFIX + length
            ends.append(position - start)
        if position < size and self._error is None:
            self._gathered = bytearray(memoryview(data)[position:])
        if ends:
            whole = data if start == 0 and position == size else memoryview(data)[start:position]
            view = memoryview(whole if type(whole) is bytearray else bytearray(whole))
            begin = _PREFIX
            for end in ends:
                frames.append(view[begin:end])
                begin = end + _PREFIX
        if self._error is not None and not frames:
            raise self._error
        return frames

    def _gather(self, data: bytes | bytearray, frames: list[memoryview]) -> int:
        """Go on with the frame begun earlier; returns how much of the data belonged to it."""
        gathered = self._gathered
        taken = 0
        if not self._wanted:
            taken = min(_PREFIX - len(gathered), len(data))
            gathered += data[:taken]
            if len(gathered) < _PREFIX:
                return taken
            length = _unpack(gathered)[0]
            if not 0 <= length <= self.frame_bytes_max:
                self._error = self._bad(length)
                raise self._error
            self._wanted = _PREFIX + length
        missing = self._wanted - len(gathered)
        rest = memoryview(data)[taken : taken + missing]
        gathered += rest
        if len(gathered) == self._wanted:
            frames.append(memoryview(gathered)[_PREFIX:])
            self._gathered = bytearray()
            self._wanted = 0
        return taken + len(rest)

    def _bad(self, length: int) -> FrameTooLarge:
        return FrameTooLarge(
            f"a frame of {length} bytes was announced; the limit is {self.frame_bytes_max}."
            " Either this is not the Kafka protocol, or the limit must be raised"
        )
