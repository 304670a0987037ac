"""The simulated network: how connections behave, with and without faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from penstock.ports import Transport
from penstock.sim.loop import START_S, SimLoop
from penstock.sim.network.link import NetworkConfig
from penstock.sim.network.machine import Machine
from penstock.sim.network.network import NodeNetwork, SimNetwork
from penstock.sim.process import Process

PORT = 9092
QUIET = NetworkConfig(tail_chance=0.0, cut_chance=0.0)


class Peer:
    """A stream receiver that records everything it receives."""

    def __init__(self, *, keeps_open: bool = False) -> None:
        self.transport: Transport
        self.data = b""
        self.pieces: list[bytes] = []
        self.events: list[str] = []
        self.keeps_open = keeps_open

    def connection_made(self, transport: Transport) -> None:
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.pieces.append(data)

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keeps_open

    def connection_lost(self, error: Exception | None) -> None:
        self.events.append("lost" if error is None else type(error).__name__)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class BufferedPeer(Peer):
    """Reads into its own buffer, a few bytes at a time; may pause itself."""

    def __init__(self, room: int = 7, pause_after: int | None = None) -> None:
        super().__init__()
        self.room = bytearray(room)
        self.pause_after = pause_after

    def get_buffer(self, size_hint: int) -> bytearray:
        return self.room

    def buffer_updated(self, size: int) -> None:
        self.data_received(bytes(self.room[:size]))
        if self.pause_after is not None and len(self.data) >= self.pause_after:
            self.pause_after = None
            self.transport.pause_reading()


class Hosts:
    """Two machines; one of them listens."""

    def __init__(self, loop: SimLoop, config: NetworkConfig) -> None:
        self.loop = loop
        self.network = SimNetwork(loop, config, Random(7))
        self.server = self.network.add_machine("server", "10.0.0.1")
        self.client = self.network.add_machine("client", "10.0.0.2")
        self.server_process = loop.new_process("server")
        self.client_process = loop.new_process("client")
        self.accepted: list[Peer] = []
        self.new_peer: Callable[[], Peer] = Peer

    def within(self, process: Process, work: Any) -> asyncio.Task[Any]:
        return self.loop.create_task(work, context=process.context.copy())

    async def listen(self) -> None:
        def accept() -> Peer:
            peer = self.new_peer()
            self.accepted.append(peer)
            return peer

        port = NodeNetwork(self.network, self.server)
        await self.within(self.server_process, port.listen("", PORT, accept))

    async def connect(self, timeout_s: float = 5.0, peer: Peer | None = None) -> Peer:
        peer = peer or Peer()
        port = NodeNetwork(self.network, self.client)
        await self.within(
            self.client_process, port.connect(self.server.host, PORT, lambda: peer, timeout_s)
        )
        return peer

    async def pair(self) -> tuple[Peer, Peer]:
        await self.listen()
        peer = await self.connect()
        await asyncio.sleep(0.1)
        return peer, self.accepted[-1]

    def link(self, source: Machine, target: Machine) -> Any:
        return self.network.link(source, target)


def run_scenario(
    scenario: Callable[[Hosts], Awaitable[None]], config: NetworkConfig = QUIET
) -> None:
    loop = SimLoop(Random(1))
    loop.horizon_s = START_S + 1000
    try:

        async def main() -> None:
            await scenario(Hosts(loop, config))

        loop.run(main())
        assert loop.unexpected == []
    finally:
        loop.close()


def test_bytes_arrive_in_order_after_a_delay() -> None:
    """All bytes arrive in both directions, with a delay."""

    async def scenario(hosts: Hosts) -> None:
        here, there = await hosts.pair()
        for number in range(100):
            here.transport.write(b"%03d" % number)
            there.transport.writelines([b"a", bytearray(b"b"), memoryview(b"c")])
            if number % 10 == 0:
                await asyncio.sleep(0.01)
        assert there.data != b"".join(b"%03d" % number for number in range(100))
        await asyncio.sleep(1)
        assert there.data == b"".join(b"%03d" % number for number in range(100))
        assert here.data == b"abc" * 100
        assert here.transport.get_extra_info("peername") == ("10.0.0.1", PORT)
        assert there.transport.get_extra_info("peername")[0] == "10.0.0.2"

    run_scenario(scenario)


def test_a_write_may_be_split_anywhere() -> None:
    """One write arrives in several reads of any size."""

    async def scenario(hosts: Hosts) -> None:
        here, there = await hosts.pair()
        for _ in range(50):
            here.transport.write(b"0123456789")
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)
        assert there.data == b"0123456789" * 50
        assert {len(piece) for piece in there.pieces} >= {1, 4, 9}

    run_scenario(scenario, NetworkConfig(cut_chance=0.5))


def test_a_buffered_receiver_gets_no_more_than_its_buffer_holds() -> None:
    """It never gets more than its buffer holds; if it pauses in the middle, the rest waits."""

    async def scenario(hosts: Hosts) -> None:
        hosts.new_peer = lambda: BufferedPeer(room=7, pause_after=20)
        here, there = await hosts.pair()
        here.transport.write(bytes(range(100)))
        await asyncio.sleep(5)
        assert there.data == bytes(range(21))
        there.transport.resume_reading()
        await asyncio.sleep(5)
        assert there.data == bytes(range(100))
        assert max(map(len, there.pieces)) == 7

    run_scenario(scenario)


def test_a_receiver_that_reads_nothing_pauses_its_sender() -> None:
    """The window fills, then the buffer, then the sender is paused; reading resumes it."""

    async def scenario(hosts: Hosts) -> None:
        here, there = await hosts.pair()
        here.transport.set_write_buffer_limits(high=2000)
        there.transport.pause_reading()
        for _ in range(30):
            here.transport.write(b"x" * 100)
            await asyncio.sleep(0.01)
        assert here.events == ["made"]
        assert here.transport.get_write_buffer_size() == 2000
        here.transport.write(b"x")
        assert here.events == ["made", "pause"]
        there.transport.resume_reading()
        await asyncio.sleep(5)
        assert here.events == ["made", "pause", "resume"]
        assert len(there.data) == 3001
        assert here.transport.get_write_buffer_size() == 0

    run_scenario(scenario, NetworkConfig(tail_chance=0.0, cut_chance=0.0, window_bytes=1000))


def test_close_sends_buffered_bytes_first() -> None:
    """The other end reads everything, then end of file; each side is notified once."""

    async def scenario(hosts: Hosts) -> None:
        here, there = await hosts.pair()
        here.transport.write(b"x" * 5000)
        here.transport.close()
        here.transport.write(b"too late")
        assert here.events == ["made"]
        await asyncio.sleep(5)
        assert there.data == b"x" * 5000
        assert there.events == ["made", "eof", "lost"]
        assert here.events == ["made", "lost"]
        assert here.transport.get_extra_info("peername") is None

    run_scenario(scenario, NetworkConfig(window_bytes=1000))


def test_an_end_may_stay_open_after_the_other_has_closed() -> None:
    """Bytes sent to a closed end are answered with a reset."""

    async def scenario(hosts: Hosts) -> None:
        hosts.new_peer = lambda: Peer(keeps_open=True)
        here, there = await hosts.pair()
        here.transport.close()
        await asyncio.sleep(5)
        assert there.events == ["made", "eof"]
        there.transport.write(b"answer")
        await asyncio.sleep(5)
        assert there.events == ["made", "eof", "ConnectionResetError"]

    run_scenario(scenario)


def test_abort_drops_the_buffer_and_resets_the_peer() -> None:
    """Bytes in flight still arrive."""

    async def scenario(hosts: Hosts) -> None:
        here, there = await hosts.pair()
        here.transport.write(b"x" * 1500)
        here.transport.abort()
        await asyncio.sleep(5)
        assert here.events == ["made", "lost"]
        assert there.data == b"x" * 1000
        assert there.events == ["made", "ConnectionResetError"]

    run_scenario(scenario, NetworkConfig(cut_chance=0.0, window_bytes=1000))


def test_connecting_without_a_listener_is_refused_and_without_a_machine_fails() -> None:
    async def scenario(hosts: Hosts) -> None:
        with pytest.raises(ConnectionRefusedError):
            await hosts.connect()
        await hosts.listen()
        hosts.link(hosts.client, hosts.server).refused = True
        with pytest.raises(ConnectionRefusedError):
            await hosts.connect()
        port = NodeNetwork(hosts.network, hosts.client)
        with pytest.raises(OSError, match="no machine"):
            await port.connect("10.9.9.9", PORT, Peer, 1.0)
        with pytest.raises(OSError, match="in use"):
            await hosts.listen()

    run_scenario(scenario)


def test_a_network_partition_delays_bytes_until_it_heals() -> None:
    """If only one direction is blocked, the other one still works."""

    async def scenario(hosts: Hosts) -> None:
        here, there = await hosts.pair()
        hosts.link(hosts.client, hosts.server).block()
        here.transport.write(b"held up")
        there.transport.write(b"passes")
        await asyncio.sleep(60)
        assert there.data == b""
        assert here.data == b"passes"
        hosts.network.heal()
        await asyncio.sleep(5)
        assert there.data == b"held up"

    run_scenario(scenario)


def test_connecting_during_a_network_partition_times_out() -> None:
    """Connecting succeeds if it heals in time. An abandoned attempt leaves no connection open."""

    async def scenario(hosts: Hosts) -> None:
        await hosts.listen()
        for link in (
            hosts.link(hosts.client, hosts.server),
            hosts.link(hosts.server, hosts.client),
        ):
            link.block()
            with pytest.raises(TimeoutError):
                await hosts.connect(2.0)
            hosts.loop.call_later(1.0, link.unblock)
            await hosts.connect(5.0)
        await asyncio.sleep(6)
        states = [peer.events[-1] for peer in hosts.accepted]
        assert states.count("made") == 2
        assert all(state in ("made", "eof", "lost", "ConnectionResetError") for state in states)

    run_scenario(scenario)


def test_bytes_of_an_abandoned_connection_may_arrive_late() -> None:
    """The client has reconnected and continued when its first produce request arrives."""

    async def scenario(hosts: Hosts) -> None:
        here, there = await hosts.pair()
        assert hosts.network.stall_between(hosts.client, hosts.server, 10.0, 1.0, Random(1)) == 1
        here.transport.write(b"first")
        await asyncio.sleep(1)
        here.transport.abort()
        second = await hosts.connect()
        second.transport.write(b"second")
        await asyncio.sleep(1)
        assert hosts.accepted[1].data == b"second"
        await asyncio.sleep(10)
        assert there.data == b"first"
        assert there.events == ["made", "ConnectionResetError"]

    run_scenario(scenario)


def test_a_clogged_link_delivers_later() -> None:
    async def scenario(hosts: Hosts) -> None:
        here, there = await hosts.pair()
        hosts.link(hosts.client, hosts.server).clogged_until = hosts.loop.now + 5
        here.transport.write(b"x")
        await asyncio.sleep(4.9)
        assert there.data == b""
        await asyncio.sleep(0.2)
        assert there.data == b"x"

    run_scenario(scenario)


def test_a_reset_is_seen_by_both_ends() -> None:
    """Bytes in flight are lost."""

    async def scenario(hosts: Hosts) -> None:
        here, there = await hosts.pair()
        here.transport.write(b"lost")
        assert hosts.network.reset_between(hosts.server, hosts.client, 1.0, Random(1)) == 1
        await asyncio.sleep(5)
        assert here.events == there.events == ["made", "ConnectionResetError"]
        assert there.data == b""

    run_scenario(scenario)


def test_low_bandwidth_and_a_slow_reader_delay_bytes() -> None:
    async def scenario(hosts: Hosts) -> None:
        here, there = await hosts.pair()
        hosts.link(hosts.client, hosts.server).bandwidth_bytes_per_s = 1000.0
        here.transport.write(b"x" * 5000)
        await asyncio.sleep(4.9)
        assert there.data == b""
        await asyncio.sleep(0.5)
        assert len(there.data) == 5000
        hosts.network.heal()
        hosts.server.read_bytes_per_s = 2048.0
        here.transport.write(b"x" * 10_240)
        await asyncio.sleep(2.5)
        assert 5000 < len(there.data) < 15_240
        await asyncio.sleep(5)
        assert len(there.data) == 15_240

    run_scenario(scenario)


def test_a_killed_process_has_its_connections_closed() -> None:
    """Responses already written may still arrive; then end of file, and connects are refused."""

    async def scenario(hosts: Hosts) -> None:
        here, there = await hosts.pair()
        there.transport.write(b"answer")
        hosts.loop.kill(hosts.server_process)
        hosts.server.on_killed(hosts.server_process)
        await asyncio.sleep(5)
        assert here.data == b"answer"
        assert here.events == ["made", "eof", "lost"]
        assert there.events == ["made"]
        with pytest.raises(ConnectionRefusedError):
            await hosts.connect()

    run_scenario(scenario)


def test_a_machine_without_power_does_not_respond() -> None:
    """Connections are half open until it is back and receives something; connects time out."""

    async def scenario(hosts: Hosts) -> None:
        here, _ = await hosts.pair()
        idle = await hosts.connect()
        hosts.loop.kill(hosts.server_process)
        hosts.server.on_power_loss(hosts.server_process)
        here.transport.write(b"are you there")
        await asyncio.sleep(60)
        assert here.events == idle.events == ["made"]
        with pytest.raises(TimeoutError):
            await hosts.connect(1.0)
        hosts.server.on_power()
        await asyncio.sleep(5)
        assert here.events == ["made", "ConnectionResetError"]
        assert idle.events == ["made"]
        idle.transport.write(b"and you")
        await asyncio.sleep(5)
        assert idle.events == ["made", "ConnectionResetError"]

    run_scenario(scenario)


def test_a_frozen_process_receives_waiting_bytes_when_it_resumes() -> None:
    """Connects succeed meanwhile: the operating system accepts them."""

    async def scenario(hosts: Hosts) -> None:
        here, there = await hosts.pair()
        hosts.loop.freeze(hosts.server_process)
        here.transport.write(b"hello")
        second = await hosts.connect()
        await asyncio.sleep(30)
        assert there.data == b""
        assert len(hosts.accepted) == 1
        second.transport.write(b"hi")
        hosts.loop.resume(hosts.server_process)
        await asyncio.sleep(5)
        assert there.data == b"hello"
        assert hosts.accepted[1].data == b"hi"

    run_scenario(scenario)
