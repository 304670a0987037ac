"""Under overload, tenants share the event loop, however many connections each of them has."""

from __future__ import annotations

import asyncio
import time

from penstock.net.fair_turns import LONG_TURN_S, TURN_S, FairTurns, Turn
from penstock.net.open_listener import OpenListener
from penstock.net.session import Answer, Peer

from .fakes import MemoryNetwork, Rig, Script, framed, in_loop, rig, settle
from .test_sockets import Live, on_both_loops

GREEDY, MODEST = "10.0.0.1", "10.0.0.2"
CONNECTIONS = 50
REQUEST_S = 0.001


class Load:
    """A greedy tenant with fifty busy connections, and a modest one with a single connection.

    Each request of the greedy tenant takes a millisecond of the event loop."""

    def __init__(self, started: Rig) -> None:
        self.rig = started
        self.served = 0

        def script(peer: Peer) -> Script:
            return Costly(self, peer) if peer.host == GREEDY else Script(peer)

        started.script = script
        self.greedy = [started.connect(GREEDY)[0] for _ in range(CONNECTIONS)]
        self.modest = started.connect(MODEST)[0]

    async def greedy_requests_per_modest_request(self, requests: int = 20) -> float:
        """Returns how many requests of the greedy tenant are served while one of the modest tenant
        waits."""
        self.keep_busy()
        await settle()
        before, answered = self.served, len(self.modest.answers())
        for number in range(1, requests + 1):
            self.modest.deliver(framed(b"e1"))
            for _ in range(1000):
                if len(self.modest.answers()) == answered + number and self.modest.reading:
                    break
                self.keep_busy()
                await asyncio.sleep(0)
            else:
                raise AssertionError("the modest tenant was not served")
            self.keep_busy()
            await asyncio.sleep(0)
        return (self.served - before) / requests

    def keep_busy(self) -> None:
        for each in self.greedy:
            each.deliver(b"" if each.inbox else framed(b"e2"))


async def emptied(turns: FairTurns) -> None:
    """Waits until nothing is left of the connections that waited or closed."""
    for _ in range(10 * CONNECTIONS):
        if not turns._share.tenants and not turns._closed:
            return
        await asyncio.sleep(0)
    raise AssertionError("connections have left something behind")


class Costly(Script):
    def __init__(self, load: Load, peer: Peer) -> None:
        super().__init__(peer)
        self._load = load

    def on_frame(self, frame: memoryview, borrowed: bool = False) -> Answer:
        self._load.served += 1
        self._load.rig.clock.now += REQUEST_S
        return super().on_frame(frame, borrowed)


@in_loop
async def test_a_modest_tenant_gets_its_share_next_to_a_greedy_one() -> None:
    started = await rig(tick_s=1000.0)
    load = Load(started)
    started.server.turns.is_enabled = False
    without = await load.greedy_requests_per_modest_request()
    started.server.turns.is_enabled = started.server.turns.is_active = True
    shared = await load.greedy_requests_per_modest_request()
    assert without >= CONNECTIONS
    assert shared <= without / 5
    assert started.server.turns.waits > 0


@in_loop
async def test_every_connection_of_a_tenant_gets_its_turn() -> None:
    started = await rig(tick_s=1000.0)
    load = Load(started)
    started.server.turns.is_active = True
    for _ in range(20 * CONNECTIONS):
        load.keep_busy()
        load.modest.deliver(framed(b"e1"))
        await asyncio.sleep(0)
    counts = [len(each.answers()) for each in load.greedy]
    assert min(counts) > 2
    assert max(counts) - min(counts) <= 2


@in_loop
async def test_connections_that_wait_go_on_when_sharing_ends() -> None:
    started = await rig(tick_s=1000.0)
    load = Load(started)
    turns = started.server.turns
    turns.is_active = True
    load.modest.deliver(framed(b"e1"))
    for each in load.greedy:
        each.deliver(framed(b"e1"))
        each.deliver(framed(b"e2"))
    assert turns.waiting
    turns.is_active = False
    for _ in range(10 * CONNECTIONS):
        await asyncio.sleep(0)
    assert turns.waiting == 0
    assert [each.answers() for each in load.greedy] == [[b"e1", b"e2"]] * CONNECTIONS


@in_loop
async def test_a_connection_that_closes_while_it_waits_leaves_nothing_behind() -> None:
    started = await rig(tick_s=1000.0)
    load = Load(started)
    turns = started.server.turns
    turns.is_active = True
    load.modest.deliver(framed(b"e1"))
    for each in load.greedy:
        each.deliver(framed(b"e1"))
    assert turns.waiting
    for each in load.greedy:
        each.lose()
    assert turns.waiting == 0
    await emptied(turns)
    load.modest.deliver(framed(b"e1"))
    assert load.modest.answers() == [b"e1", b"e1"]


@in_loop
async def test_followers_and_the_listener_of_brokers_do_not_wait() -> None:
    started = await rig(tick_s=1000.0)
    load = Load(started)
    network = MemoryNetwork()
    listener = OpenListener("BROKERS", Script, is_protected=True)
    await started.server.open(listener, network, "127.0.0.1", 9093)
    follower = started.connect("10.0.0.3")
    follower[1].peer.is_replica = True
    brokers = [network.open("10.0.0.4", 1 << 30), follower[0]]
    started.server.turns.is_active = True
    load.modest.deliver(framed(b"e1"))
    for each in load.greedy:
        each.deliver(framed(b"e1"))
    assert started.server.turns.waiting
    for each in brokers:
        for _ in range(10):
            each.deliver(framed(b"e1"))
            assert each.reading
        assert len(each.answers()) == 10


class Loop:
    """A loop whose timers are as late as the test says."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turns = FairTurns(lambda: self.now_s)

    def is_active(self) -> bool:
        return self.turns.is_active

    def tick(self, late_s: float, tenants: str = "ab") -> None:
        """A tick, and then a timer that is so late."""
        self.turns.on_tick(tenants)
        self.turns.on_probe(late_s)
        self.turns.close()

    def read(self, *tenants: str, seconds: float = 1.0) -> list[Turn]:
        turns = []
        for tenant in tenants:
            turn = Turn(self.turns, lambda: None)
            turn.tenant = tenant
            turn.on_read(1000, self.now_s - seconds)
            turns.append(turn)
        return turns


@in_loop
async def test_sharing_begins_only_if_timers_are_late_and_several_tenants_are_connected() -> None:
    loop = Loop()
    loop.tick(LONG_TURN_S / 2)
    assert not loop.is_active()
    loop.tick(2 * LONG_TURN_S, tenants="a")
    assert not loop.is_active()
    loop.turns.is_enabled = False
    loop.tick(2 * LONG_TURN_S)
    assert not loop.is_active()
    loop.turns.is_enabled = True
    loop.tick(2 * LONG_TURN_S)
    assert loop.is_active()


@in_loop
async def test_sharing_begins_before_the_next_tick_if_another_tenant_connects() -> None:
    """Also if it opens a connection for each request, and has none at the tick."""
    loop = Loop()
    loop.tick(2 * LONG_TURN_S, tenants="a")
    Turn(loop.turns, lambda: None).on_open("b")
    assert loop.turns._probe is not None
    loop.turns.on_probe(2 * LONG_TURN_S)
    assert loop.is_active()
    loop.turns.close()


@on_both_loops
async def test_requests_that_block_the_event_loop_begin_sharing(live: Live) -> None:
    """On real sockets, with the timers of the server."""

    class Slow(Script):
        def on_frame(self, frame: memoryview, borrowed: bool = False) -> Answer:
            time.sleep(4 * LONG_TURN_S)
            return super().on_frame(frame, borrowed)

    live.script = Slow
    server = await live.server()
    clients = [
        await live.client(server, local_addr=(source, 0)) for source in ("127.0.0.1", "127.0.0.2")
    ]
    turns = server.turns
    while not turns.is_active:
        for client in clients:
            client.writer.write(framed(b"e1"))
            assert await client.answer() == b"e1"


@in_loop
async def test_sharing_goes_on_while_tenants_compete_and_ends_then() -> None:
    loop = Loop()
    loop.tick(2 * LONG_TURN_S)
    for _ in range(3):
        loop.read("a", "b", "a", "b")
        loop.tick(0.0)
        assert loop.is_active()
    loop.tick(0.0)
    assert not loop.is_active()
    loop.tick(2 * LONG_TURN_S)
    loop.tick(0.0)
    assert loop.is_active(), "a timer was late"
    loop.tick(0.0)
    assert not loop.is_active()


@in_loop
async def test_a_tenant_that_is_busy_alone_does_not_wait() -> None:
    loop = Loop()
    loop.tick(2 * LONG_TURN_S)
    loop.read(*["a"] * 100)
    assert (loop.is_active(), loop.turns.waits) == (True, 0)
    loop.read("b", "a", "a")
    assert loop.turns.waits == 2
    await emptied(loop.turns)
    loop.tick(2 * LONG_TURN_S)
    loop.read("a", "a")
    assert loop.turns.waits == 3, "the other one may only be slow"
    await emptied(loop.turns)
    loop.tick(2 * LONG_TURN_S)
    loop.read(*["a"] * 100)
    assert loop.turns.waits == 3


@in_loop
async def test_the_setting_ends_sharing() -> None:
    loop = Loop()
    loop.tick(2 * LONG_TURN_S)
    loop.read("a", "b", "a", "b")
    loop.turns.is_enabled = False
    loop.tick(2 * LONG_TURN_S)
    assert not loop.is_active()


@in_loop
async def test_work_that_is_done_later_counts_for_its_tenant() -> None:
    """Whose next read then fills a turn alone, also after the connection has closed."""
    loop = Loop()
    loop.tick(2 * LONG_TURN_S)
    cheap = TURN_S / 10
    first, second = loop.read("a", "b", seconds=cheap)
    assert not first.waits
    assert not second.waits
    first.spend(10 * TURN_S)
    first.close()
    (third,) = loop.read("a", seconds=cheap)
    assert third.waits
    (fourth,) = loop.read("b", seconds=cheap)
    await emptied(loop.turns)
    assert [third.waits, fourth.waits] == [False, False]


@in_loop
async def test_reads_of_many_requests_get_shorter_and_longer_again() -> None:
    """While sharing lasts. Then everything is read that has arrived."""
    started = await rig(tick_s=1000.0)
    load = Load(started)
    turns = started.server.turns
    frames = framed(b"e") * 40
    connection = load.greedy[0].receiver
    turns.is_active = True
    load.modest.deliver(framed(b"e1"))
    whole = len(connection.get_buffer(-1))
    load.greedy[0].deliver(frames)
    assert len(connection.get_buffer(-1)) < whole
    turns.is_active = False
    assert len(connection.get_buffer(-1)) == whole
    turns.is_active = True
    await emptied(turns)
    for _ in range(20):
        load.modest.deliver(framed(b"e1"))
        turns.now = lambda: 0.0
        load.greedy[0].deliver(framed(b"e"))
        await emptied(turns)
    assert len(connection.get_buffer(-1)) == whole
