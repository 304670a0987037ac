"""Responses leave in request order, whether requests succeed, wait or fail."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.wire.errors import ProtocolError

from .fakes import framed, in_loop, rig, settle


@in_loop
async def test_a_response_that_is_ready_is_sent_at_once() -> None:
    """The event loop does not run between a request and its response."""
    transport, _ = (await rig()).connect()
    transport.deliver(framed(b"e1"))
    assert transport.answers() == [b"e1"]


@in_loop
async def test_responses_to_one_read_are_sent_in_one_write() -> None:
    """A burst of pipelined requests costs one system call for all its responses."""
    transport, session = (await rig()).connect()
    bodies = [b"e%d" % number for number in range(50)]
    transport.deliver(framed(*bodies))
    assert transport.answers() == bodies == session.frames
    assert transport.writes == 1


@in_loop
async def test_responses_wait_for_earlier_ones() -> None:
    """Futures finish out of order, ready responses do not overtake, and requests without a response
    do not hold up the others.
    """
    transport, session = (await rig()).connect()
    transport.deliver(framed(b"d0", b"f1", b"e2", b"n3", b"f4", b"d5"))
    assert session.frames == [b"d0", b"f1", b"e2", b"n3", b"f4", b"d5"]
    assert transport.answers() == [b"d0"]
    session.finish(b"f4")
    await settle()
    assert transport.answers() == [b"d0"]
    session.finish(b"f1")
    await settle()
    assert transport.answers() == [b"d0", b"f1", b"e2", b"f4", b"d5"]
    assert transport.writes == 2


@in_loop
async def test_a_request_starts_when_all_earlier_requests_are_answered() -> None:
    """If its session lets it overlap, it starts at once, and only the responses keep their
    order.
    """
    transport, session = (await rig()).connect()
    transport.deliver(framed(b"f1", b"f2", b"s3", b"s4", b"f5", b"f6", b"e7"))
    begun = [[b"f1", b"f2"], [b"s3"], [b"s4"], [b"f5", b"f6", b"e7"]]
    for number in range(len(begun)):
        assert session.frames == [name for step in begun[: number + 1] for name in step]
        session.finish(*session.futures)
        await settle()
    assert transport.answers() == [b"f1", b"f2", b"s3", b"s4", b"f5", b"f6", b"e7"]


@in_loop
async def test_queued_requests_are_served_after_the_peer_has_hung_up() -> None:
    """Every complete request is served, however long the requests before it take."""
    transport, session = (await rig()).connect()
    transport.deliver(framed(b"s1", b"s2", b"n3"))
    transport.end()
    for name in (b"s1", b"s2"):
        session.finish(name)
        await settle()
    assert session.frames == [b"s1", b"s2", b"n3"]
    assert transport.answers() == [b"s1", b"s2"]
    assert transport.is_lost()


@in_loop
async def test_a_future_that_resolves_to_none_sends_no_response() -> None:
    transport, session = (await rig()).connect()
    transport.deliver(framed(b"f1", b"f2", b"e3"))
    session.futures[b"f1"].set_result(None)
    session.finish(b"f2")
    await settle()
    assert transport.answers() == [b"f2", b"e3"]


@in_loop
async def test_requests_responses_and_bytes_are_counted() -> None:
    """The bytes include the four bytes of length."""
    started = await rig()
    transport, session = started.connect()
    transport.deliver(framed(b"e1", b"n2", b"f3"))
    session.finish(b"f3")
    await settle()
    counters = started.server.counters
    assert (counters.requests, counters.responses) == (3, 2)
    assert (counters.bytes_in, counters.bytes_out) == (18, 12)
    assert (counters.connections, counters.connections_accepted) == (1, 1)


@in_loop
async def test_frames_are_writable() -> None:
    """Offsets can be written into a request in place, also if it spans several reads."""
    started = await rig(read_buffer_bytes=8)
    seen: list[memoryview] = []
    started.server.new_session = lambda _peer: Keeper(seen)
    transport = started.network.open()
    transport.deliver(framed(b"ab", b"c" * 50))
    for frame in seen:
        frame[0:1] = b"Z"
    assert [bytes(frame[:2]) for frame in seen] == [b"Zb", b"Zc"]


class Keeper:
    def __init__(self, seen: list[memoryview]) -> None:
        self._seen = seen

    def may_overlap(self, frame: memoryview) -> bool:
        return True

    def on_frame(self, frame: memoryview, borrowed: bool = False) -> None:
        self._seen.append(memoryview(bytearray(frame)) if borrowed else frame)

    def on_closed(self) -> None:
        pass


@in_loop
async def test_a_protocol_error_closes_the_connection_after_the_earlier_responses() -> None:
    """Earlier requests are answered; later ones are not even looked at."""
    started = await rig()
    transport, session = started.connect()
    transport.deliver(framed(b"f1", b"p", b"e3"))
    assert session.frames == [b"f1", b"p"]
    transport.deliver(framed(b"e4"))
    await settle()
    assert not transport.is_lost()
    session.finish(b"f1")
    await settle()
    assert transport.answers() == [b"f1"]
    assert transport.is_lost()
    assert not transport.aborted
    assert session.closed == 1
    assert session.frames == [b"f1", b"p"]
    assert started.server.counters.connections_failed == 1


@in_loop
async def test_a_bad_length_closes_the_connection_after_the_earlier_responses() -> None:
    """Frames before garbage in the same read are served."""
    transport, _ = (await rig(frame_bytes_max=100)).connect()
    transport.deliver(framed(b"e1") + b"GET / HTTP/1.1\r\n\r\n")
    await settle()
    assert transport.answers() == [b"e1"]
    assert transport.is_lost()


@in_loop
async def test_a_failed_request_closes_only_its_own_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An unexpected exception is logged with its traceback, and other connections go on."""
    started = await rig()
    transport, _ = started.connect()
    other, _ = started.connect()
    with caplog.at_level(logging.ERROR):
        transport.deliver(framed(b"e1", b"x", b"e3"))
        await settle()
    assert transport.answers() == [b"e1"]
    assert transport.is_lost()
    assert "RuntimeError: a bug" in caplog.text
    other.deliver(framed(b"e1"))
    assert other.answers() == [b"e1"]


@pytest.mark.parametrize("how", ["protocol", "bug", "cancelled"])
@in_loop
async def test_a_failed_future_closes_the_connection_after_the_earlier_responses(how: str) -> None:
    """Responses after the failed request are not sent."""
    transport, session = (await rig()).connect()
    transport.deliver(framed(b"f1", b"f2", b"e3"))
    failed = session.futures[b"f2"]
    if how == "cancelled":
        failed.cancel()
    else:
        failed.set_exception(ProtocolError("no") if how == "protocol" else RuntimeError("bug"))
    await settle()
    assert not transport.is_lost()
    session.finish(b"f1")
    await settle()
    assert transport.answers() == [b"f1"]
    assert transport.is_lost()


@in_loop
async def test_a_session_can_close_the_connection_after_its_response() -> None:
    """A refused login gets its response before the connection is closed."""
    transport, session = (await rig()).connect()
    transport.deliver(framed(b"f1", b"c2", b"e3"))
    session.finish(b"f1")
    await settle()
    assert transport.answers() == [b"f1", b"c2"]
    assert transport.is_lost()
    assert session.frames == [b"f1", b"c2"]


@in_loop
async def test_a_session_can_lower_the_frame_limit() -> None:
    """Before authentication, a session accepts small frames only."""
    transport, session = (await rig()).connect()
    session.peer.frame_bytes_max = 10
    transport.deliver(framed(b"e" * 10))
    session.peer.frame_bytes_max = 20
    transport.deliver(framed(b"e" * 20))
    transport.deliver(framed(b"e" * 21))
    await settle()
    assert [len(answer) for answer in transport.answers()] == [10, 20]
    assert transport.is_lost()


@in_loop
async def test_a_lost_connection_notifies_its_session_and_cancels_no_futures() -> None:
    """The peer is gone while requests are pending. Their results are not written anywhere."""
    started = await rig()
    transport, session = started.connect()
    transport.deliver(framed(b"f1", b"f2"))
    transport.lose(ConnectionResetError())
    assert session.closed == 1
    assert not session.futures[b"f1"].cancelled()
    session.finish(b"f1", b"f2")
    await settle()
    assert started.server.counters.connections == 0
    assert started.server.budget.used == 0


@in_loop
async def test_a_failure_to_create_a_session_closes_only_that_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The listener survives any exception of new_session."""
    started = await rig(connections_max=1)

    def broken(_peer: object) -> Keeper:
        raise RuntimeError("no memory for a session")

    working, started.server.new_session = started.server.new_session, broken
    with caplog.at_level(logging.ERROR):
        transport = started.network.open()
        await settle()
    assert transport.is_lost()
    assert "no memory for a session" in caplog.text
    started.server.new_session = working
    again, _ = started.connect()
    again.deliver(framed(b"e1"))
    assert again.answers() == [b"e1"]


@in_loop
async def test_requests_received_completely_before_eof_are_served() -> None:
    """A producer with acks=0 may send and hang up at once."""
    started = await rig(requests_in_flight_max=1)
    transport, session = started.connect()
    transport.deliver(framed(b"f1", b"n2", b"e3"))
    transport.end()
    await settle()
    assert session.frames == [b"f1"]
    assert not transport.is_lost()
    session.finish(b"f1")
    await settle()
    assert session.frames == [b"f1", b"n2", b"e3"]
    assert transport.answers() == [b"f1", b"e3"]
    assert transport.is_lost()


@in_loop
async def test_a_peer_that_hung_up_loses_its_connection_after_the_eof_timeout() -> None:
    """A consumer that died with a request parked for minutes frees its connection in seconds."""
    started = await rig(eof_timeout_s=5)
    transport, session = started.connect()
    transport.deliver(framed(b"f1"))
    transport.end()
    await started.ticks(4)
    assert not transport.is_lost()
    await started.ticks(2)
    assert transport.is_lost()
    assert session.closed == 1


@in_loop
async def test_stop_waits_for_pending_responses() -> None:
    """A stopping server refuses new connections and requests, finishes those in progress, and
    returns when all connections are closed.
    """
    started = await rig()
    idle, _ = started.connect()
    busy, session = started.connect()
    busy.deliver(framed(b"f1"))
    stopping = asyncio.ensure_future(started.server.stop(timeout_s=30))
    await settle()
    assert not started.network.listener.open
    assert idle.is_lost()
    late = started.network.open()
    await settle()
    assert late.is_lost()
    busy.deliver(framed(b"e2"))
    assert not stopping.done()
    session.finish(b"f1")
    await stopping
    assert busy.answers() == [b"f1"]
    assert session.frames == [b"f1"]
    assert busy.is_lost()


@in_loop
async def test_stop_drops_connections_that_do_not_finish_in_time() -> None:
    """Neither a future that never resolves nor a peer that never reads delays the stop."""
    started = await rig(write_buffer_bytes=10)
    stuck, session = started.connect()
    stuck.deliver(framed(b"f1"))
    slow, _ = started.connect(window=0)
    slow.deliver(framed(b"b100"))
    await started.server.stop(timeout_s=0.01)
    assert stuck.aborted
    assert slow.aborted
    assert session.closed == 1
    assert started.server.counters.connections == 0


@in_loop
async def test_frames_served_in_the_read_buffer_are_answered_in_order() -> None:
    """Some answers are ready at once and others are futures, in one read or in two."""
    started = await rig(read_buffer_bytes=64)
    transport, _ = started.connect()
    bodies = [b"e%d" % number + b"." * number for number in range(20)]
    mixed = [body if number % 3 else b"d" + body for number, body in enumerate(bodies)]
    transport.deliver(framed(*mixed))
    assert transport.answers() == mixed


@in_loop
async def test_frames_that_wait_are_not_overwritten() -> None:
    """They are copied, because other connections read into the same buffer."""
    started = await rig(requests_in_flight_max=1)
    transport, session = started.connect()
    transport.deliver(framed(b"f1", b"e2" * 50, b"e3" * 50))
    other, _ = started.connect()
    other.deliver(framed(*[b"e" + b"#" * 60] * 20))
    session.finish(b"f1")
    await settle()
    assert transport.answers() == [b"f1", b"e2" * 50, b"e3" * 50]


@in_loop
async def test_the_short_rest_of_a_frame_is_read_together_with_the_next_frames() -> None:
    """One read, and so one write, instead of one for the rest and one for the others."""
    started = await rig()
    transport, session = started.connect()
    stream = framed(b"e" + bytes(50_000), b"e2", b"e3")
    transport.deliver(stream[:49_000])
    writes = transport.writes
    transport.deliver(stream[49_000:])
    assert [len(body) for body in session.frames] == [50_001, 2, 2]
    assert transport.writes - writes == 1
