"""One simulated connection: two ends, and a directed byte stream from each end to the other.

Bytes arrive in order and, unless the connection is reset, completely. The delays and the sizes of
the pieces are random. Bytes in flight are not lost with their sender: bytes of an end that has
given up still arrive, perhaps minutes later after a partition, followed by the reset. Only bytes
that had not left the sender (its write buffer) are lost with it.

A window limits how many bytes are in flight or unread. A receiver that does not read fills it; then
the sender's buffer grows, and the sender is asked to pause, as in asyncio.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

from penstock.ports import Buffer, BufferedReceiver, Receiver, StreamReceiver
from penstock.sim.loop import SimLoop
from penstock.sim.network.link import Link
from penstock.sim.process import Process, SimHandle

DATA: Final = 0
FIN: Final = 1
RESET: Final = 2

_HIGH_BYTES: Final = 64 << 10
SLOW_READ_BYTES: Final = 2048


class _Segment:
    __slots__ = ("arrival", "kind", "launched", "parts", "size")

    def __init__(self, kind: int, launched: float, arrival: float) -> None:
        self.kind = kind
        self.launched = launched
        self.arrival = arrival
        self.parts: list[bytes] = []
        self.size = 0


class Host(Protocol):
    """What a connection uses of the machine at one of its ends."""

    ends: dict[SimTransport, None]
    read_bytes_per_s: float | None

    def refuse_bytes(self, stream: Stream) -> None:
        """Handles bytes for a connection that no longer exists here."""


class Stream:
    """The bytes from one end to the other."""

    __slots__ = (
        "_back",
        "_flight",
        "_flying",
        "_last_arrival",
        "_loop",
        "_next_read",
        "_timer",
        "_unsent",
        "_window",
        "ended",
        "link",
        "source",
        "target",
        "unsent_bytes",
    )

    def __init__(self, loop: SimLoop, link: Link, back: Link) -> None:
        self._loop = loop
        self._back = back
        self._window = link.config.window_bytes
        self._unsent: deque[bytes] = deque()
        self._flight: deque[_Segment] = deque()
        self._flying = 0
        self._last_arrival = 0.0
        self._next_read = 0.0
        self._timer: SimHandle | None = None
        self.unsent_bytes = 0
        self.ended = False
        """A FIN or a reset is in flight. Nothing comes after it."""
        self.link = link
        self.source: SimTransport
        self.target: SimTransport

    # Sender side

    def push(self, data: bytes) -> None:
        if not self._unsent and self._flying + len(data) <= self._window:
            self._launch_data(data)
            return
        self._unsent.append(data)
        self.unsent_bytes += len(data)
        self.pump()

    def pump(self) -> None:
        """Sends as much as the window has space for."""
        unsent = self._unsent
        while unsent and (room := self._window - self._flying) > 0:
            data = unsent.popleft()
            if len(data) > room:
                unsent.appendleft(data[room:])
                data = data[:room]
            self.unsent_bytes -= len(data)
            self._launch_data(data)

    def end(self, kind: int) -> None:
        """Ends the stream with a FIN or a reset. A reset discards unsent bytes."""
        if kind == RESET:
            self._unsent.clear()
            self.unsent_bytes = 0
        if not self.ended:
            self.ended = True
            self._launch(_Segment(kind, self._loop.now, self._arrival(0)))

    def cut_off(self) -> None:
        """Ends the stream without a FIN: what had left the sender arrives, and then nothing."""
        self._unsent.clear()
        self.unsent_bytes = 0
        self.ended = True

    def forget(self) -> None:
        """Discards everything: nothing of this stream arrives any more."""
        self._unsent.clear()
        self._flight.clear()
        self.unsent_bytes = self._flying = 0
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def refuse(self) -> None:
        """Discards everything, and answers the sender with a reset."""
        self.forget()
        end = self.source
        self._loop.call_later(
            self._back.delay(0),
            end.lose,
            ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
            context=end.process.context,
        )

    def _launch_data(self, data: bytes) -> None:
        now = self._loop.now
        flight = self._flight
        last = flight[-1] if flight else None
        if last is None or last.launched != now or last.kind != DATA:
            last = _Segment(DATA, now, self._arrival(len(data)))
            self._launch(last)
        last.parts.append(data)
        last.size += len(data)
        self._flying += len(data)

    def _launch(self, segment: _Segment) -> None:
        self._flight.append(segment)
        self._last_arrival = segment.arrival
        if self._timer is None and len(self._flight) == 1:
            self._set_timer(segment.arrival)

    def _arrival(self, size: int) -> float:
        return max(self._last_arrival, self._loop.now + self.link.delay(size))

    def _set_timer(self, when: float) -> None:
        process = self.target.process
        context = (self._loop.world if process.dead else process).context
        self._timer = self._loop.call_at(when, self._arrive, context=context)

    # Receiver side

    def kick(self) -> None:
        """Tries to deliver again: the link is open, the receiver reads again, or it has died."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flight:
            self._set_timer(max(self._flight[0].arrival, self._loop.now))

    def hold_until(self, when: float) -> None:
        """Delays all arrivals until that time."""
        self._next_read = max(self._next_read, when)

    def resend(self, pause_s: float = 0.0) -> None:
        """Like `kick`, after an outage: delayed bytes are sent again, which takes the
        usual time."""
        if self._flight:
            first = self._flight[0]
            delay_s = pause_s + self.link.delay(first.size)
            first.arrival = max(first.arrival, self._loop.now + delay_s)
            for segment in self._flight:
                segment.arrival = max(segment.arrival, first.arrival)
            self._last_arrival = max(self._last_arrival, first.arrival)
        self.kick()

    def _arrive(self) -> None:
        self._timer = None
        if not self._flight:
            return
        now, link = self._loop.now, self.link
        if link.blocked:
            link.stalled[self] = None
            return
        due = max(self._flight[0].arrival, link.clogged_until, self._next_read)
        if due > now:
            self._set_timer(due)
            return
        target = self.target
        if target.lost or target.process.dead:
            if self._flight[0].kind == DATA and not self.source.lost:
                target.machine.refuse_bytes(self)
            else:
                self.forget()
        elif target.closing and self._flight[0].kind == DATA:
            # No code reads here any more, but what follows must get through.
            self._flying -= self._flight.popleft().size
            self.kick()
        elif target.made and (target.reading or self._flight[0].kind == RESET):
            self._deliver(target)

    def _deliver(self, target: SimTransport) -> None:
        segment = self._flight[0]
        if segment.kind != DATA:
            self._flight.popleft()
            target.mark("end", segment.kind)
            if segment.kind == FIN:
                target.on_fin()
            else:
                target.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            return
        data = b"".join(segment.parts) if len(segment.parts) > 1 else segment.parts[0]
        rate = target.machine.read_bytes_per_s
        size = self.link.piece(len(data) if rate is None else min(len(data), SLOW_READ_BYTES))
        if size < len(data):
            segment.parts = [data[size:]]
            segment.size -= size
            data = data[:size]
        else:
            self._flight.popleft()
        if rate is not None:
            self._next_read = self._loop.now + size / rate
        self._flying -= size
        target.mark("bytes", size)
        left = target.receive(data)
        if left:
            # The receiver paused reading in the middle.
            self._put_back(left)
        if self._unsent:
            _Acknowledgement(self._loop, self._back, self.source).resend()
        if self._flight and self._timer is None:
            self._set_timer(max(self._flight[0].arrival, self._loop.now))

    def _put_back(self, left: bytes) -> None:
        segment = _Segment(DATA, -1.0, 0.0)
        segment.parts.append(left)
        segment.size = len(left)
        self._flight.appendleft(segment)
        self._flying += len(left)

    @property
    def has_unread(self) -> bool:
        return self._flying > 0


class SimTransport:
    """One end of a connection: the `Transport` port, with asyncio's semantics."""

    __slots__ = (
        "_high_bytes",
        "_loop",
        "_names",
        "_paused",
        "_receiver",
        "closing",
        "incoming",
        "lost",
        "machine",
        "made",
        "outgoing",
        "process",
        "reading",
    )

    def __init__(
        self,
        loop: SimLoop,
        machine: Host,
        process: Process,
        names: dict[str, tuple[str, int]],
    ) -> None:
        self._loop = loop
        self._names = names
        self._receiver: Receiver | None = None
        self._high_bytes = _HIGH_BYTES
        self._paused = False
        self.machine = machine
        self.process = process
        self.incoming: Stream
        self.outgoing: Stream
        self.made = False
        self.reading = True
        self.closing = False
        self.lost = False
        """The connection is lost at this end: its owner was notified, or is about to be."""

    def join(self, incoming: Stream, outgoing: Stream) -> None:
        self.incoming, self.outgoing = incoming, outgoing
        incoming.target = outgoing.source = self
        self.machine.ends[self] = None

    def open(self, receiver: Receiver) -> None:
        """Connects the receiver, which reads from now on. Runs in the context of its process."""
        self._receiver = receiver
        self.made = True
        receiver.connection_made(self)
        self.incoming.kick()

    # The Transport port

    def write(self, data: Buffer) -> None:
        if self.closing or self.lost or not len(data):
            return
        self.outgoing.push(bytes(data))
        self._pause_if_full()

    def writelines(self, parts: Sequence[Buffer]) -> None:
        self.write(b"".join(parts))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = _HIGH_BYTES if high is None else high
        self._pause_if_full()

    def get_write_buffer_size(self) -> int:
        return self.outgoing.unsent_bytes

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        if not self.reading and not self.closing:
            self.reading = True
            self.incoming.kick()

    def is_closing(self) -> bool:
        return self.closing or self.lost

    def close(self) -> None:
        if self.closing or self.lost:
            return
        self.closing = True
        self.reading = False
        if not self.outgoing.unsent_bytes:
            self._finish()

    def abort(self) -> None:
        if self.lost:
            return
        self.closing = True
        self.outgoing.end(RESET)
        self._go(None)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername" and self.lost:
            return default
        return self._names.get(name, default)

    # Called by the network

    def mark(self, kind: str, size: int) -> None:
        """Adds an event at this end to the trace."""
        self._loop.trace.mark(kind, self.process.index, size, self.process.name)

    def receive(self, data: bytes) -> bytes:
        """Passes bytes to the receiver. Returns those that it did not take because it paused."""
        receiver = self._receiver
        if not hasattr(receiver, "get_buffer"):
            cast(StreamReceiver, receiver).data_received(data)
            return b""
        buffered = cast(BufferedReceiver, receiver)
        done = 0
        while done < len(data) and self.reading and not self.lost:
            buffer = memoryview(buffered.get_buffer(len(data) - done)).cast("B")
            size = min(len(buffer), len(data) - done)
            buffer[:size] = data[done : done + size]
            done += size
            buffered.buffer_updated(size)
        return b"" if self.lost or self.closing else data[done:]

    def on_fin(self) -> None:
        told = getattr(self._receiver, "eof_received", None)
        if not (told is not None and told()):
            self.close()

    def on_acknowledged(self) -> None:
        """The window has space again. Runs in the context of its process."""
        if self.lost:
            return
        outgoing = self.outgoing
        outgoing.pump()
        if self._paused and outgoing.unsent_bytes <= self._high_bytes // 4:
            self._paused = False
            if self._receiver is not None:
                self._receiver.resume_writing()
        if self.closing and not outgoing.unsent_bytes:
            self._finish()

    def lose(self, error: Exception | None) -> None:
        """Ends the connection here, and notifies the owner."""
        if not self.lost:
            self.outgoing.cut_off()
            self._go(error)

    def vanish(self) -> None:
        """Ends the connection without notifying the owner: its process is dead."""
        self.lost = self.closing = True
        self.machine.ends.pop(self, None)
        self._receiver = None

    def _finish(self) -> None:
        if not self.lost:
            self.outgoing.end(FIN)
            self._go(None)

    def _go(self, error: Exception | None) -> None:
        self.lost = True
        self.machine.ends.pop(self, None)
        self._loop.call_soon(self._tell_lost, error, context=self.process.context)

    def _tell_lost(self, error: Exception | None) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.connection_lost(error)

    def _pause_if_full(self) -> None:
        if not self._paused and self.outgoing.unsent_bytes > self._high_bytes:
            self._paused = True
            if self._receiver is not None:
                self._receiver.pause_writing()


class _Acknowledgement:
    """A receiver's notification, in flight, that its window has space again."""

    __slots__ = ("_end", "_link", "_loop")

    def __init__(self, loop: SimLoop, link: Link, end: SimTransport) -> None:
        self._loop = loop
        self._link = link
        self._end = end

    def resend(self, pause_s: float = 0.0) -> None:
        link = self._link
        if link.blocked:
            link.stalled[self] = None
            return
        when = max(self._loop.now + pause_s + link.delay(0), link.clogged_until)
        self._loop.call_at(when, self._end.on_acknowledged, context=self._end.process.context)
