"""An encrypted file that behaves like a plain one: the `File` port, by positions in the plaintext.

`sealed_format` explains the format. An append costs one encryption and one write. A read decrypts
the frames that it touches; the last one is remembered, because a batch's header is read before the
batch.

A truncation at the end of a frame, which is the end of a batch, cuts the file there. Only index
files are truncated elsewhere, or written again in the middle. The rest of that frame is then sealed
again, as a new frame. A power loss in between may lose it; indexes are rebuilt then.
"""

from __future__ import annotations

from array import array
from typing import Final

from cryptography.exceptions import InvalidTag

from penstock.ports import Buffer, File, Random
from penstock.storage.files import write_all
from penstock.storage.sealed_format import (
    FRAME_OVERHEAD,
    HEADER_BYTES,
    ROOM_MIN,
    Aead,
    FileHeader,
    Frame,
    find_frames,
    open_frame,
    seal_frame,
    unreadable,
)

_UNKNOWN: Final = -1
_NO_FRAMES: Final = -2
_COUNT_MAX: Final = 1 << 32


class Nonces:
    """The nonces of one opening of a file: random bytes, then a counter."""

    __slots__ = ("_count", "_prefix", "_random")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._prefix = b""
        self._count = _COUNT_MAX

    def next(self, start: int) -> bytes:
        """Returns a nonce for the frame at `start` of the file. Truncation and other appends may
        put many frames there, so `start` plays no part in it."""
        if self._count == _COUNT_MAX:
            self._prefix, self._count = self._random.bytes(8), 0
        nonce = self._prefix + self._count.to_bytes(4, "big")
        self._count += 1
        return nonce


class FrameMap:
    """Where the frames of a file are. Needs no key."""

    __slots__ = ("_cached", "_file", "_starts", "end", "page_bytes", "size", "tail")

    def __init__(self, file: File, page_bytes: int) -> None:
        self._file = file
        self.page_bytes = page_bytes
        self._starts: array[int] = array("q")
        """For each page, the position of its first frame, `_UNKNOWN` or `_NO_FRAMES`."""
        self._cached: tuple[int, list[Frame]] = (-1, [])
        self.tail: list[Frame] = []
        """The frames of the last page that has any."""
        self.end = HEADER_BYTES
        """Where the next frame begins, before padding."""
        self.size = 0
        """The size of the plaintext, including what cannot be read at its end."""
        self.load()

    def load(self) -> None:
        """Finds the end of the file."""
        self._starts, self._cached, self.tail = array("q"), (-1, []), []
        file_size = max(HEADER_BYTES, self._file.size())
        for page in reversed(range(self.page_of(file_size - 1) + 1)):
            self.tail = self._read_page(page)[0]
            if self.tail:
                break
        self.end = file_size
        self.size = self._size_at(file_size)

    def _size_at(self, file_size: int) -> int:
        if not self.tail:
            return file_size - HEADER_BYTES
        last = self.tail[-1]
        rest = file_size - last.file_end
        room = self.page_end(last.file_end - 1) - last.file_end
        if room < ROOM_MIN:
            rest -= min(rest, room)
        return last.end + rest

    def page_of(self, at: int) -> int:
        return (at - HEADER_BYTES) // self.page_bytes

    def page_start(self, page: int) -> int:
        return HEADER_BYTES + page * self.page_bytes

    def page_end(self, at: int) -> int:
        """Returns where the page ends that contains `at`."""
        return self.page_start(self.page_of(at) + 1)

    def next_start(self) -> tuple[int, int]:
        """Returns where the next frame begins, and how much space it has in its page."""
        at = self.end
        room = self.page_end(at) - at
        return (at, room) if room >= ROOM_MIN else (at + room, self.page_bytes)

    def add(self, frame: Frame) -> None:
        """Notes a frame that was written at the end."""
        page = self.page_of(frame.start)
        if not self.tail or self.page_of(self.tail[-1].start) != page:
            self._set_start(page, frame.position)
            self.tail = []
        self.tail.append(frame)
        self.end, self.size = frame.file_end, frame.end

    def _set_start(self, page: int, position: int) -> None:
        missing = page + 1 - len(self._starts)
        if missing > 0:
            self._starts.extend([_UNKNOWN] * missing)
        self._starts[page] = position

    def _read_page(self, page: int) -> tuple[list[Frame], bytes]:
        start = self.page_start(page)
        data = self._file.pread(self.page_bytes, start)
        frames = find_frames(data, start, self.page_bytes)
        self._set_start(page, frames[0].position if frames else _NO_FRAMES)
        return frames, data

    def frames(self, page: int) -> tuple[list[Frame], bytes | None]:
        """Returns the frames of a page, and its bytes if they had to be read."""
        if self.tail and self.page_of(self.tail[-1].start) == page:
            return self.tail, None
        if self._cached[0] == page:
            return self._cached[1], None
        frames, data = self._read_page(page)
        self._cached = (page, frames)
        return frames, data

    def _start_of(self, page: int) -> int:
        known = self._starts[page] if page < len(self._starts) else _UNKNOWN
        if known == _UNKNOWN:
            self._read_page(page)
            known = self._starts[page]
        return known

    @property
    def pages(self) -> int:
        """How many pages there are up to the last one that has frames."""
        return self.page_of(self.tail[-1].start) + 1 if self.tail else 0

    def page_at(self, position: int) -> int:
        """Returns the last page that begins at or below a position of the plaintext."""
        # A page holds at most this much, so the page is not before the first guess. With large
        # frames the guess is right.
        low = min(position // (self.page_bytes - FRAME_OVERHEAD), self.pages - 1)
        high = self.pages - 1
        while low < high:
            middle = (low + high + 1) // 2
            probe = middle
            while probe < high and self._start_of(probe) == _NO_FRAMES:
                probe += 1
            if self._start_of(probe) <= position:
                low = probe
            else:
                high = middle - 1
        while low > 0 and not 0 <= self._start_of(low) <= position:
            low -= 1
        return max(low, 0)

    def last_before(self, position: int) -> Frame | None:
        """Returns the last frame that begins below a position of the plaintext."""
        page = self.page_at(max(0, position - 1)) if self.pages else -1
        while page >= 0:
            below = [frame for frame in self.frames(page)[0] if frame.position < position]
            if below:
                return below[-1]
            page -= 1
        return None


class EncryptedFile:
    """An open encrypted file. Used by one thread at a time, except for `fsync`."""

    __slots__ = (
        "_cipher",
        "_file",
        "_header",
        "_last",
        "_map",
        "_nonces",
        "_place",
        "_random",
        "_torn",
    )

    def __init__(
        self,
        file: File,
        cipher: Aead,
        place: bytes,
        page_bytes: int,
        random: Random,
        header: FileHeader | None = None,
    ) -> None:
        """`header` is written again if the disk has lost it; None for a file that is only read."""
        self._file = file
        self._header = header
        self._cipher = cipher
        self._place = place
        self._random = random
        self._nonces = Nonces(random)
        self._map = FrameMap(file, page_bytes)
        self._last = (-1, b"")
        """The frame that was opened last: where it is in the file, and its content."""
        self._torn = False
        """A write failed and may have left bytes after the last frame."""

    # Reading

    def pread(self, size: int, position: int) -> bytes:
        where = self._map
        if position + size > where.size and not self._torn and self._file.size() > where.end:
            # Another handle has appended to the file.
            where.load()
        end = min(position + size, where.size)
        if end <= position:
            return b""
        parts: list[bytes] = []
        at = position
        page, pages = where.page_at(position), where.pages
        while page < pages and at < end:
            frames, data = where.frames(page)
            for frame in frames:
                if frame.position >= end:
                    break
                if frame.end <= at:
                    continue
                if frame.position > at:
                    parts.append(bytes(frame.position - at))
                    at = frame.position
                content = self._open(frame, data, where.page_start(page))
                stop = min(end, frame.end)
                whole = at == frame.position and stop == frame.end
                parts.append(
                    content if whole else content[at - frame.position : stop - frame.position]
                )
                at = stop
            page += 1
        if at < end:
            parts.append(bytes(end - at))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _open(self, frame: Frame, page: bytes | None, page_start: int) -> bytes:
        start, content = self._last
        if start == frame.start:
            return content
        size = frame.file_end - frame.start
        if page is None:
            sealed = memoryview(self._file.pread(size, frame.start))
        else:
            at = frame.start - page_start
            sealed = memoryview(page)[at : at + size]
        try:
            content = open_frame(self._cipher, self._place, frame, sealed)
        except InvalidTag:
            content = unreadable(self._cipher, frame, sealed, self._random)
        self._last = (frame.start, content)
        return content

    # Writing

    def pwrite(self, data: Buffer, position: int) -> int:
        size = len(data)
        if not size:
            return 0
        if self._torn:
            self._drop_torn()
        where = self._map
        if position != where.size:
            self._write_elsewhere(data, position)
            return size
        start, room = where.next_start()
        pieces = [(0, size, start)] if room - FRAME_OVERHEAD >= size else self._split(size)
        frames = [Frame(position + at, length, begin) for at, length, begin in pieces]
        self._write(data, frames, position)
        return size

    def _split(self, size: int) -> list[tuple[int, int, int]]:
        """Divides the next bytes into frames: where each begins in the data, its length, and where
        it begins in the file."""
        where = self._map
        start, room = where.next_start()
        pieces, done = [], 0
        while done < size:
            length = min(size - done, room - FRAME_OVERHEAD)
            pieces.append((done, length, start))
            done += length
            page_end = where.page_end(start)
            start += length + FRAME_OVERHEAD
            room = page_end - start
            if room < ROOM_MIN:
                start, room = page_end, where.page_bytes
        return pieces

    def _write(self, data: Buffer, frames: list[Frame], position: int) -> None:
        """Seals and writes frames, and zeros where a page has no space for another one."""
        where = self._map
        begin = where.end
        sealed = bytearray(frames[-1].file_end - begin)
        view, source = memoryview(sealed), memoryview(data)
        for frame in frames:
            at = frame.position - position
            seal_frame(
                self._cipher,
                self._place,
                source[at : at + frame.length],
                frame.position,
                frame.start,
                self._nonces.next(frame.start),
                view[frame.start - begin : frame.file_end - begin],
            )
        self._torn = True
        write_all(self._file, sealed, begin)
        self._torn = False
        for frame in frames:
            where.add(frame)

    def _write_elsewhere(self, data: Buffer, position: int) -> None:
        """Writes in the middle of the file, or leaves a gap of zeros before the data."""
        size = self._map.size
        after = b""
        if position < size:
            after = self.pread(max(0, size - position - len(data)), position + len(data))
            self.truncate(position)
        else:
            data = bytes(position - size) + bytes(data)
            position = size
        self.pwrite(data, position)
        if after:
            self.pwrite(after, self._map.size)

    def truncate(self, size: int) -> None:
        where = self._map
        if self._torn:
            self._drop_torn()
        if size >= where.size:
            if size > where.size:
                self.pwrite(bytes(size - where.size), where.size)
            return
        self._last = (-1, b"")
        frame = where.last_before(size)
        if frame is None or frame.end <= size:
            # In a range that cannot be read, its remaining bytes stay, as they would in a plain
            # file.
            end, kept = (
                (HEADER_BYTES, size) if frame is None else (frame.file_end, size - frame.end)
            )
            self._cut(end + kept)
            return
        rest = self.pread(size - frame.position, frame.position)
        self._cut(frame.start)
        self.pwrite(rest, frame.position)

    def _cut(self, end: int) -> None:
        self._last = (-1, b"")
        self._file.truncate(end)
        self._map.load()

    def _drop_torn(self) -> None:
        self._file.truncate(self._map.end)
        self._torn = False

    # The rest of the port

    def size(self) -> int:
        if self._torn:
            # What a failed write has left counts, so that the caller cuts it off.
            return self._map.size + max(0, self._file.size() - self._map.end)
        return self._map.size

    def fsync(self) -> None:
        self._file.fsync()

    def drop_cache(self) -> None:
        self._last = (-1, b"")
        self._file.drop_cache()
        header = self._header.encode() if self._header is not None else b""
        if self._file.pread(len(header), 0) != header:
            # After a failed fsync the page cache has a header that never reached the disk. The
            # frames may have. Without it, they would be lost with the last handle of the file.
            write_all(self._file, header, 0)
        self._map.load()

    def close(self) -> None:
        self._last = (-1, b"")
        self._file.close()
