"""Limits on what one peer can cost the server: requests, bytes, time and connections."""

from __future__ import annotations

import logging
import struct

import pytest

from penstock.net.config import ServerConfig

from .fakes import framed, in_loop, rig, settle


@in_loop
async def test_reading_stops_at_the_limit_of_requests_in_flight() -> None:
    """Frames beyond the limit wait in order. Serving and reading resume when requests are
    answered.
    """
    transport, session = (await rig(requests_in_flight_max=2)).connect()
    transport.deliver(framed(b"f1", b"f2", b"e3", b"f4", b"f5", b"e6"))
    assert session.frames == [b"f1", b"f2"]
    assert not transport.is_reading()
    transport.deliver(framed(b"e7"))
    session.finish(b"f1")
    await settle()
    assert session.frames == [b"f1", b"f2", b"e3"]
    session.finish(b"f2")
    await settle()
    assert session.frames == [b"f1", b"f2", b"e3", b"f4", b"f5"]
    assert transport.answers() == [b"f1", b"f2", b"e3"]
    assert not transport.is_reading()
    session.finish(b"f5", b"f4")
    await settle()
    assert transport.is_reading()
    assert transport.answers()[3:] == [b"f4", b"f5", b"e6", b"e7"]


@in_loop
async def test_the_last_request_within_the_limit_already_stops_reading() -> None:
    """At the limit nothing more is read, although no frame is queued yet."""
    transport, session = (await rig(requests_in_flight_max=1)).connect()
    transport.deliver(framed(b"f1"))
    assert not transport.is_reading()
    session.finish(b"f1")
    await settle()
    assert transport.is_reading()


@in_loop
async def test_requests_beyond_the_limit_of_bytes_in_flight_wait() -> None:
    """A request that is larger than the limit is served when it is the only one."""
    transport, session = (await rig(bytes_in_flight_max=100)).connect()
    transport.deliver(framed(b"f" + b"1" * 49, b"f" + b"2" * 39, b"f" + b"3" * 299, b"e4"))
    assert len(session.frames) == 2
    assert not transport.is_reading()
    session.finish(session.frames[0])
    await settle()
    assert len(session.frames) == 2
    session.finish(session.frames[1])
    await settle()
    assert len(session.frames) == 3
    session.finish(session.frames[2])
    await settle()
    assert transport.answers()[-1] == b"e4"
    assert transport.is_reading()


@in_loop
async def test_bytes_at_the_limit_stop_reading() -> None:
    """A request of exactly the limit is the last one read until it is answered."""
    transport, session = (await rig(bytes_in_flight_max=100)).connect()
    transport.deliver(framed(b"f" + bytes(99)))
    assert not transport.is_reading()
    session.finish(session.frames[0])
    await settle()
    assert transport.is_reading()


@in_loop
async def test_requests_of_a_slow_reader_are_neither_read_nor_served() -> None:
    """At most the write buffer's limit plus one response is unsent, and nothing is lost."""
    transport, session = (await rig(write_buffer_bytes=2000)).connect(window=0)
    transport.deliver(framed(*[b"b1000"] * 100))
    assert not transport.is_reading()
    assert transport.unsent_most <= 2000 + 1004 + (64 << 10)
    transport, session = (await rig(write_buffer_bytes=2000)).connect(window=0)
    transport.deliver(framed(*[b"b100000"] * 100))
    assert len(session.frames) == 1
    assert transport.unsent_most == 100_004
    transport.deliver(framed(b"e1"))
    for _ in range(200):
        transport.take(100_004 // 2)
        await settle()
        assert transport.unsent_most <= 2000 + 100_004
    transport.take(10)
    await settle()
    assert len(transport.answers()) == 101
    assert transport.answers()[-1] == b"e1"
    assert transport.is_reading()


@in_loop
async def test_responses_of_futures_wait_for_a_slow_reader() -> None:
    """A future that resolves while the peer does not read adds nothing to the write buffer."""
    transport, session = (await rig(write_buffer_bytes=10)).connect(window=0)
    transport.deliver(framed(b"f1", b"f2", b"f3"))
    session.futures[b"f1"].set_result([framed(bytes(100))])
    await settle()
    unsent = len(transport.unsent)
    session.finish(b"f2", b"f3")
    await settle()
    assert len(transport.unsent) == unsent == 104
    transport.take(1000)
    await settle()
    assert transport.answers() == [bytes(100), b"f2", b"f3"]


@in_loop
async def test_a_peer_that_reads_nothing_is_dropped() -> None:
    """Any progress, however slow, keeps its connection. No progress for the whole timeout ends
    it.
    """
    started = await rig(write_buffer_bytes=10, write_stall_timeout_s=30)
    transport, session = started.connect(window=0)
    transport.deliver(framed(b"b1000"))
    for _ in range(5):
        await started.ticks(29)
        transport.take(1)
    assert not transport.is_lost()
    await started.ticks(32)
    assert transport.aborted
    assert session.closed == 1
    assert started.server.counters.connections_dropped == 1


@in_loop
async def test_a_closing_connection_whose_peer_does_not_read_is_dropped() -> None:
    """The write stall timeout also applies to the last response before a close."""
    started = await rig(write_stall_timeout_s=30)
    transport, _ = started.connect(window=0)
    transport.deliver(framed(b"c1"))
    await started.ticks(20)
    assert not transport.is_lost()
    await started.ticks(12)
    assert transport.aborted


@in_loop
async def test_idle_connections_are_closed() -> None:
    """Each request restarts the idle timeout, and a pending request suspends it."""
    started = await rig(idle_timeout_s=600)
    transport, session = started.connect()
    await started.ticks(599)
    transport.deliver(framed(b"e1"))
    await started.ticks(599)
    transport.deliver(framed(b"f2"))
    await started.ticks(2000)
    assert not transport.is_lost()
    session.finish(b"f2")
    await settle()
    await started.ticks(599)
    assert not transport.is_lost()
    await started.ticks(2)
    assert transport.is_lost()


@in_loop
async def test_a_frame_must_be_complete_within_its_timeout() -> None:
    """A byte now and then does not keep a connection open; complete frames do."""
    started = await rig(frame_timeout_s=60)
    slow, _ = started.connect()
    steady, _ = started.connect()
    slow.deliver(framed(b"e" * 1000)[:10])
    for _ in range(59):
        slow.deliver(b"e")
        steady.deliver(framed(b"e1") + framed(b"e2")[:3])
        steady.deliver(framed(b"e2")[3:])
        await started.ticks(1)
    assert not slow.is_lost()
    await started.ticks(2)
    assert slow.is_lost()
    assert not steady.is_lost()


@in_loop
async def test_the_frame_timeout_starts_with_the_first_byte_of_the_length() -> None:
    started = await rig(frame_timeout_s=60)
    transport, _ = started.connect()
    for byte in framed(bytes(100))[:3]:
        transport.deliver(bytes([byte]))
        await started.ticks(21)
    assert transport.is_lost()


@in_loop
async def test_the_addresses_of_closed_connections_are_not_remembered() -> None:
    started = await rig()
    for number in range(50):
        transport, _ = started.connect(f"10.0.1.{number}")
        transport.lose()
    assert started.server.admission.addresses == 0


@in_loop
async def test_the_frame_timeout_does_not_run_while_the_server_does_not_read() -> None:
    """A frame behind a full pipeline has its whole timeout again once the server reads on."""
    started = await rig(frame_timeout_s=60, requests_in_flight_max=1)
    transport, session = started.connect()
    transport.deliver(framed(b"f1") + framed(b"e2")[:5])
    await started.ticks(500)
    assert not transport.is_lost()
    session.finish(b"f1")
    await settle()
    await started.ticks(59)
    assert not transport.is_lost()
    transport.deliver(framed(b"e2")[5:])
    assert transport.answers() == [b"f1", b"e2"]


@pytest.mark.parametrize("length", [-1, 1001, 0x7FFFFFFF])
@in_loop
async def test_an_impossible_length_closes_the_connection_at_once(length: int) -> None:
    """The server reads nothing beyond the four bytes and allocates nothing for the frame."""
    started = await rig(frame_bytes_max=1000)
    transport, session = started.connect()
    transport.deliver(struct.pack(">i", length))
    await settle()
    assert transport.is_lost()
    assert session.frames == []
    assert started.server.budget.used == 0


@in_loop
async def test_connections_are_limited_in_total_and_per_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Excess connections are closed at once, a closed connection makes space for a new one, and the
    rejections do not flood the log.
    """
    started = await rig(connections_max=3, connections_per_address_max=2)
    with caplog.at_level(logging.WARNING):
        first, _ = started.connect("10.0.0.9")
        started.connect("10.0.0.9")
        assert started.network.open("10.0.0.9").aborted
        started.connect("10.0.0.8")
        for _ in range(100):
            assert started.network.open("10.0.0.7").aborted
        await settle()
    assert started.server.counters.connections == 3
    assert started.server.counters.connections_rejected == 101
    assert len(caplog.records) == 1
    assert "10.0.0.9: 2 connections from this address are open" in caplog.text
    await started.ticks(10)
    with caplog.at_level(logging.WARNING):
        started.network.open("10.0.0.7")
        await settle()
    assert (
        "10.0.0.7: 3 connections are open, and max.connections allows no more; 100 more"
        in caplog.text
    )
    assert started.server.admission.addresses == 2
    first.lose()
    again, _ = started.connect("10.0.0.9")
    again.deliver(framed(b"e1"))
    assert again.answers() == [b"e1"]


@in_loop
async def test_an_address_can_have_a_limit_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    started = await rig(connections_per_address_max=2)
    started.server.admission.of_address = {"10.0.0.9": 3, "10.0.0.8": 0}
    for _ in range(3):
        started.connect("10.0.0.9")
    assert started.network.open("10.0.0.9").aborted
    assert "3 connections from this address are open, and max.connections.per.ip.overrides" in (
        caplog.text
    )
    assert started.network.open("10.0.0.8").aborted
    for _ in range(2):
        started.connect("10.0.0.7")
    assert started.network.open("10.0.0.7").aborted


@pytest.mark.parametrize(
    ("name", "value"), [("connections_max", 0), ("idle_timeout_s", -1.0), ("port", 70000)]
)
def test_an_invalid_setting_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        ServerConfig(**{name: value})  # type: ignore[arg-type]
