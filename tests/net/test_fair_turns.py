"""Under overload, tenants share the event loop, however many connections each of them has."""

from __future__ import annotations

import asyncio

from penstock.net.fair_turns import LONG_TURN_S, MEASURED_TURNS, FairTurns, Turn
from penstock.net.open_listener import OpenListener
from penstock.net.session import Answer, Peer

from .fakes import MemoryNetwork, Rig, Script, framed, in_loop, rig, settle

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
    for _ in range(3):
        await asyncio.sleep(0)
    assert turns._share.tenants == 0
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
    """Turns of the event loop that take as long as the test says."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turns = FairTurns(lambda: self.now_s)

    async def tick(self, turn_s: float, tenants: int = 2) -> None:
        self.turns.on_tick(tenants)
        for _ in range(2 * MEASURED_TURNS):
            self.now_s += turn_s
            await asyncio.sleep(0)

    def read(self, *tenants: str) -> None:
        for tenant in tenants:
            turn = Turn(self.turns, lambda: None)
            turn.tenant = tenant
            turn.on_read(1000, self.now_s - 1.0)


@in_loop
async def test_sharing_begins_only_if_turns_are_long_and_several_tenants_are_connected() -> None:
    loop = Loop()
    await loop.tick(LONG_TURN_S / 2)
    await loop.tick(2 * LONG_TURN_S, tenants=1)
    assert not loop.turns.is_active
    loop.turns.is_enabled = False
    await loop.tick(2 * LONG_TURN_S)
    assert not loop.turns.is_active
    loop.turns.is_enabled = True
    await loop.tick(2 * LONG_TURN_S)
    assert loop.turns.is_active


@in_loop
async def test_sharing_goes_on_while_tenants_compete_and_ends_then() -> None:
    loop = Loop()
    await loop.tick(2 * LONG_TURN_S)
    for _ in range(3):
        loop.read("a", "b", "a", "b")
        await loop.tick(0.0)
        assert loop.turns.is_active
    await loop.tick(0.0)
    assert not loop.turns.is_active


@in_loop
async def test_a_tenant_that_is_busy_alone_does_not_wait() -> None:
    loop = Loop()
    await loop.tick(2 * LONG_TURN_S)
    loop.read(*["a"] * 100)
    assert (loop.turns.is_active, loop.turns.waits) == (True, 0)
    loop.read("b", "a", "a")
    assert loop.turns.waits == 2


@in_loop
async def test_the_setting_ends_sharing() -> None:
    loop = Loop()
    await loop.tick(2 * LONG_TURN_S)
    loop.read("a", "b", "a", "b")
    loop.turns.is_enabled = False
    await loop.tick(2 * LONG_TURN_S)
    assert not loop.turns.is_active
