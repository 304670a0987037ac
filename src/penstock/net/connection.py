"""One connection: passes request frames to its session, and writes the answers in request order.

Order. A request begins when all earlier requests of the connection are answered, so it sees their
effects. The session may let it begin earlier (`Session.may_overlap`): consecutive produce requests
are all appended at once, and wait for their commits together.

Answers. `_queue.pending` holds the requests whose answer has not been written, oldest first. While
it is empty, an answer that the session returns immediately is written immediately. Only the oldest
future is watched: when it completes, every answer behind it that is ready is sent in the same
write. The answers to all frames of one read are also sent in one write, because the system call
costs more than everything else.

Memory. Answer bytes that the peer does not accept are counted (`response_budget`) while writing is
paused. Answers from files are read as the peer accepts them (`outbox`).

Reading stops, which limits memory, while any of these is true:
  - frames that were read could not be dispatched yet (`_queue.waiting`),
  - too many requests or bytes of this connection are pending,
  - the request budget of all connections is exhausted and it is not this connection's turn,
  - the event loop is overloaded, and other tenants are to get their share first (`fair_turns`),
  - the peer does not accept its answers (`_write_paused`); then nothing is dispatched either,
  - the session has muted it (`mute`), because the client is over a quota; nothing is dispatched,
  - the connection is closing, or the peer has sent EOF.
Only `_steer` makes this decision.

Closing. `_closing` means: dispatch nothing more, and close once `_queue.pending` is empty and the
outbox has handed everything to the transport. The transport sends what it has before it closes. A
peer that does not accept it is dropped by `on_tick`.

Only a mute has a timer. Activity is stamped with the server's coarse time, checked once per tick.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, cast

from penstock.net.budget import SMALL_READ_BYTES, TAIL_BYTES_MIN, TURN_BYTES, Share
from penstock.net.fair_turns import Turn
from penstock.net.mute import Mute
from penstock.net.open_listener import OpenListener, Shared
from penstock.net.outbox import JOIN_BYTES, Outbox
from penstock.net.request_queue import Later, Ready, RequestQueue
from penstock.net.response_budget import MEMORY_SHORT
from penstock.net.session import Part, Session, SessionRefused
from penstock.net.timeouts import Activity
from penstock.ports import Transport
from penstock.wire.errors import ProtocolError
from penstock.wire.framing import FrameReader

_log: Final = logging.getLogger(__name__)
_NOTHING: Final[Ready] = ()


class Connection(asyncio.BufferedProtocol):
    """One accepted connection. The module docstring describes its rules."""

    __slots__ = (
        "_activity",
        "_budget",
        "_closing",
        "_dispatching",
        "_eof",
        "_listener",
        "_mute",
        "_outbox",
        "_queue",
        "_reader",
        "_reading",
        "_scratch",
        "_session",
        "_share",
        "_shared",
        "_transport",
        "_watched",
        "_write_paused",
        "host",
        "is_replica",
        "port",
        "turn",
    )

    def __init__(self, shared: Shared, listener: OpenListener) -> None:
        self._shared = shared
        self._listener = listener
        self._budget = shared.budget
        self._reader = FrameReader(shared.config.frame_bytes_max)
        self._scratch = shared.scratch
        self._transport: Transport | None = None
        self._outbox: Outbox | None = None
        self._session: Session | None = None
        self._queue = RequestQueue(shared.budget)
        self.turn = Turn(shared.turns, self._steer, is_exempt=listener.is_protected)
        self._share = Share(shared.budget, shared.large_requests, self._steer, self.turn)
        self._watched: Later | None = None
        self._dispatching = False
        self._reading = True
        self._write_paused = False
        self._closing = False
        self._eof = False
        self._mute = Mute(shared.counters)
        self._activity = Activity(shared.now)
        self.host = ""
        self.port = 0
        self.is_replica = False

    # -- the `Peer` interface, used by sessions

    @property
    def frame_bytes_max(self) -> int:
        return self._reader.frame_bytes_max

    @frame_bytes_max.setter
    def frame_bytes_max(self, value: int) -> None:
        """A session lowers the limit for a client that is not authenticated. Such a client gets
        only small reads too: the requests in one read may have to wait in memory."""
        self._reader.frame_bytes_max = value
        shared = self._shared
        is_low = value < shared.config.frame_bytes_max
        self._scratch = shared.scratch[:SMALL_READ_BYTES] if is_low else shared.scratch

    def get_extra_info(self, name: str) -> Any:
        return None if self._transport is None else self._transport.get_extra_info(name)

    def replace_session(self, session: Session) -> None:
        if self._session is not None:
            self._session = session

    def mute(self, seconds: float) -> None:
        if not self._closing:
            self._mute.begin(seconds, self._advance)
            if not self._dispatching:
                self._steer()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._mute.end()
        self._queue.forget_waiting()
        self._share.release()
        self._reader.discard()
        self._activity.stalled_since = self._shared.now
        if not self._dispatching:
            self._steer()

    # -- callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport | Transport) -> None:
        shared = self._shared
        self._transport = cast(Transport, transport)
        address: Any = transport.get_extra_info("peername")
        if address:
            self.host, self.port = address[:2]
        # Without an address, the peer disconnected before it was accepted.
        if shared.stopping or not address or not self._listener.admits(self.host, shared):
            shared.counters.connections_rejected += 1
            self._closing = True
            self._transport.abort()
            return
        limit = shared.config.write_buffer_bytes
        self._outbox = Outbox(self._transport, shared.counters, limit)
        try:
            self._session = self._listener.new_session(self)
        except Exception as error:  # noqa: BLE001 - it must not reach the listener
            if isinstance(error, SessionRefused):
                reason = f"{error} (on the listener {self._listener.name})"
                shared.admission.refuse(self.host, reason, shared.now)
            else:
                text = "cannot create a session for the client at %s:%s; closing the connection"
                _log.exception(text, self.host, self.port)
            shared.admission.leave(self.host)
            self.abort()
            return
        self._listener.connections += 1
        shared.on_opened(self, self._listener, self._activity, self.turn)

    def get_buffer(self, sizehint: int) -> memoryview:
        tail = self._reader.tail
        if tail is not None and len(tail) >= TAIL_BYTES_MIN:
            return tail[:TURN_BYTES] if self._share.exhausted else tail
        if self._budget.exhausted or self._shared.large_requests.exhausted:
            return self._shared.scratch[:SMALL_READ_BYTES]
        is_shared = self._shared.turns.is_active
        return self._scratch[: self.turn.read_bytes] if is_shared else self._scratch

    def buffer_updated(self, size: int) -> None:
        shared, reader = self._shared, self._reader
        turns = shared.turns
        began = turns.now() if turns.is_active and not self.is_replica else None
        shared.counters.bytes_in += size
        self._activity.active_at = shared.now
        if self._closing:
            return
        try:
            tail, begun = reader.tail, reader.buffered
            reader.lean = shared.large_requests.is_tight
            borrowed = tail is None or len(tail) < TAIL_BYTES_MIN
            if borrowed:
                frames = reader.feed(shared.scratch[:size], borrow=True)
                if frames or not begun:
                    self._activity.frame_since = shared.now
            else:
                frame = reader.filled(size)
                frames = [] if frame is None else [frame]
        except ProtocolError as error:
            self._fail(error)
            return
        if frames:
            self._dispatch(frames, borrowed=borrowed)
        if reader.error is not None and not self._closing:
            self._fail(reader.error)
        if not self._closing and (reader.buffered or begun or self._budget.exhausted):
            self._share.on_read(
                reader.buffered, reader.held, reader.wanted, came_whole=bool(frames)
            )
        queue, is_held = self._queue, self._closing or self._share.waits or self._mute.active
        if began is not None and not self._closing:
            self.turn.on_read(size, began)
            is_held = is_held or self.turn.waits
        if queue.pending or queue.waiting or is_held:
            self._steer()

    def eof_received(self) -> bool:
        """Stops reading. Requests that arrived completely are still served: a producer with acks=0
        waits for no answer. No frame waits at this point, because EOF would not be seen then."""
        self._eof = True
        self._reading = False
        self._activity.active_at = self._shared.now
        self._steer()
        return True

    def pause_writing(self) -> None:
        if not self._write_paused:
            self._write_paused = True
            self._activity.stalled_since = self._shared.now
            self._activity.stalled_bytes = 0
        if self._outbox is not None:
            self._shared.responses.hold(self, self._outbox.held)
        if not self._dispatching:
            self._steer()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._activity.active_at = self._shared.now
        if self._outbox is not None and self._outbox.has_backlog:
            self._outbox.go_on()
            if self._write_paused:
                return
        self._shared.responses.release(self)
        if not self._dispatching:
            self._advance()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._mute.end()
        self._transport = None
        outbox, self._outbox = self._outbox, None
        if outbox is not None:
            outbox.close()
        self._shared.responses.release(self)
        self._queue.forget_waiting()
        self._watched = None
        self._share.close()
        self.turn.close()
        # A partly received request may hold many megabytes: free it now instead of at the next
        # garbage collection.
        self._reader.discard()
        self._budget.give_back(self._queue.clear_pending())
        session, self._session = self._session, None
        if session is None:
            return
        self._listener.connections -= 1
        self._shared.admission.leave(self.host)
        self._shared.on_lost(self)
        try:
            session.on_closed()
        except Exception:  # noqa: BLE001 - a failing session must not affect other connections
            _log.exception("closing the session of %s:%s failed", self.host, self.port)

    # -- requests

    def _dispatch(self, frames: Sequence[memoryview] = (), *, borrowed: bool = False) -> None:
        """Passes the waiting frames, and then these, to the session as far as the limits allow."""
        session, config, counters = self._session, self._shared.config, self._shared.counters
        assert session is not None
        on_frame, may_overlap = session.on_frame, session.may_overlap
        queue, mute = self._queue, self._mute
        pending, waiting = queue.pending, queue.waiting
        waiting.extend(frames)
        out: list[Part] = []
        out_bytes = served = requests = responses = 0
        self._dispatching = True
        while waiting and not (self._write_paused or mute.active):
            frame = waiting[0]
            size = len(frame)
            if pending and (
                not may_overlap(frame)
                or len(pending) >= config.requests_in_flight_max
                or queue.pending_bytes + size > config.bytes_in_flight_max
            ):
                break
            waiting.popleft()
            served += size
            requests += 1
            try:
                answer = on_frame(frame, borrowed)
            except Exception as error:  # noqa: BLE001 - _fail logs it
                self._fail(error)
                break
            if isinstance(answer, asyncio.Future):
                if not answer.done():
                    if queue.park(answer, size):
                        self._watch(answer)
                    continue
                ready = self._result(answer)
                if ready is None:
                    break
                answer = ready
            if not answer:
                continue
            if pending:
                queue.park(answer, size)
                continue
            responses += 1
            out += answer
            out_bytes += len(answer[0]) if len(answer) == 1 else sum(map(len, answer))
            if out_bytes > JOIN_BYTES:
                self._send(out, out_bytes)
                # Release what was sent: the next answer can reuse the memory while it is cached.
                out, out_bytes, answer = [], 0, None
        if out:
            self._send(out, out_bytes)
        self._dispatching = False
        counters.requests += requests
        counters.responses += responses
        if waiting or queue.waiting_bytes:
            if borrowed:
                queue.own_waiting()
            queue.count_waiting(sum(map(len, frames)) - served)

    def _watch(self, head: Later) -> None:
        self._watched = head
        head.add_done_callback(self._on_head_done)

    # -- answers

    def _on_head_done(self, head: Later) -> None:
        if head is self._watched:
            self._watched = None
            self._advance()

    def _advance(self) -> None:
        """Writes the answers that are next in order, then serves requests that waited for them."""
        if self._transport is None:
            return
        began = self.turn.begin() if self._shared.turns.is_active else None
        self._activity.active_at = self._shared.now
        self._dispatching = True
        self._write_ready()
        self._dispatching = False
        if self._queue.waiting:
            self._dispatch()
        self._steer()
        if began is not None:
            self.turn.end(began)

    def _write_ready(self) -> None:
        """Writes the answers at the front of `_queue.pending` that are ready."""
        queue = self._queue
        pending = queue.pending
        out: list[Part] = []
        out_bytes = 0
        given_back = 0
        while pending and not self._write_paused:
            answer, size = pending[0]
            if isinstance(answer, asyncio.Future):
                if not answer.done():
                    if self._watched is not answer:
                        self._watch(answer)
                    break
                ready = self._result(answer)
                if ready is None:
                    # The connection closes, so the requests behind the failed one are dropped too.
                    given_back += queue.clear_pending()
                    break
                answer = ready
            pending.popleft()
            queue.pending_bytes -= size
            given_back += size
            self._shared.counters.responses += bool(answer)
            out += answer
            out_bytes += sum(map(len, answer))
            if out_bytes > JOIN_BYTES:
                self._send(out, out_bytes)
                out, out_bytes = [], 0
        if out:
            self._send(out, out_bytes)
        self._budget.give_back(given_back)

    def _result(self, answer: Later) -> Ready | None:
        """Returns the parts of an answer, empty if there is no response; None if it failed."""
        try:
            return answer.result() or _NOTHING
        except asyncio.CancelledError:
            self._fail(ProtocolError("the request was cancelled"))
        except Exception as error:  # noqa: BLE001 - _fail logs it
            self._fail(error)
        return None

    def _send(self, parts: list[Part], size: int) -> None:
        if self._outbox is not None:
            self._outbox.send(parts, size)

    # -- flow control

    def _steer(self) -> None:
        """Pauses or resumes reading, or closes, as the current state requires."""
        transport, queue = self._transport, self._queue
        if transport is None:
            return
        if self._closing or self._eof:
            if not queue.pending and (self._outbox is None or not self._outbox.has_backlog):
                self._closing = True
                transport.close()
            elif self._reading:
                self._reading = False
                transport.pause_reading()
            return
        config = self._shared.config
        wanted = not (
            self._write_paused
            or self._mute.active
            or queue.waiting
            or self._share.waits
            or self.turn.waits
            or len(queue.pending) >= config.requests_in_flight_max
            or queue.pending_bytes >= config.bytes_in_flight_max
        )
        if wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            self._activity.frame_since = self._shared.now
            self._share.restart()
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _fail(self, error: Exception) -> None:
        """Closes the connection after the pending answers, and logs why."""
        self._shared.counters.connections_failed += 1
        if isinstance(error, ProtocolError):
            _log.info("closing the connection from %s:%s: %s", self.host, self.port, error)
        else:
            text = "closing the connection from %s:%s: a request failed"
            _log.error(text, self.host, self.port, exc_info=error)
        self.close()

    # -- timeouts

    def on_tick(self, now: float) -> None:
        """Drops the connection if one of its timeouts has expired."""
        if self._transport is None:
            return
        activity, outbox, unsent = self._activity, self._outbox, 0
        if outbox is not None and (self._write_paused or self._closing or self._eof):
            unsent = outbox.unsent
            if unsent and activity.has_sent(unsent, now):
                if self._write_paused:
                    self._shared.responses.hold(self, outbox.held)
                return
        why = activity.overdue(
            now,
            self._shared.config,
            unsent=unsent,
            at_eof=self._eof,
            receiving=self._share if self._reading and self._reader.buffered else None,
            is_pending=bool(self._queue.pending or self._mute.active),
        )
        if self._mute.is_abandoned(self._transport, now, self._shared.config.eof_timeout_s):
            why = "was muted because of a quota, and the client has disconnected"
        if why is not None:
            self.drop(why)

    def drop_for_memory(self) -> None:
        self._shared.counters.connections_evicted += 1
        self.drop(MEMORY_SHORT)

    def drop(self, why: str) -> None:
        self._shared.counters.connections_dropped += 1
        _log.info("dropping the connection from %s:%s: it %s", self.host, self.port, why)
        self.abort()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
