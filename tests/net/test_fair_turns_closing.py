"""Connections open, close and fail under overload: no place is lost, and each tenant pays."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.net import fair_turns
from penstock.net.fair_turns import FairTurns, Turn
from penstock.net.session import Peer

from .fakes import MemoryTransport, framed, in_loop, rig
from .test_fair_turns import GREEDY, MODEST, Costly, Load, emptied

PER_TURN = 20


@in_loop
async def test_a_connection_for_each_request_gets_no_more() -> None:
    """The greedy tenant closes each connection after its first request."""
    started = await rig(tick_s=1000.0)
    load = Load(started)
    turns = started.server.turns
    opened: list[MemoryTransport] = []

    def open_more() -> None:
        for each in opened:
            if each.answers():
                each.lose()
        opened[:] = [each for each in opened if not each.lost]
        for _ in range(PER_TURN - len(opened)):
            opened.append(started.connect(GREEDY)[0])
            opened[-1].deliver(framed(b"e1"))

    async def served_per_modest_request() -> float:
        before = load.served
        answered = len(load.modest.answers())
        for number in range(1, 21):
            load.modest.deliver(framed(b"e1"))
            for _ in range(1000):
                if len(load.modest.answers()) == answered + number:
                    break
                open_more()
                await asyncio.sleep(0)
            else:
                raise AssertionError("the modest tenant was not served")
            open_more()
            await asyncio.sleep(0)
        return (load.served - before) / 20

    turns.is_enabled = False
    without = await served_per_modest_request()
    turns.is_enabled = turns.is_active = True
    shared = await served_per_modest_request()
    assert without >= PER_TURN
    assert shared <= without / 3


@in_loop
async def test_a_new_connection_waits_for_its_turn_and_is_served() -> None:
    started = await rig(tick_s=1000.0)
    load = Load(started)
    turns = started.server.turns
    turns.is_active = True
    load.modest.deliver(framed(b"e1"))
    for each in load.greedy:
        each.deliver(framed(b"e1"))
    late = started.connect(GREEDY)[0]
    assert not late.reading
    late.deliver(framed(b"e1", b"e2"))
    for _ in range(1000):
        if late.answers():
            break
        await asyncio.sleep(0)
    assert late.answers() == [b"e1", b"e2"]
    await emptied(turns)


@in_loop
async def test_closed_connections_leave_a_limited_number_of_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_turns, "CLOSED_MAX", 10)
    started = await rig(tick_s=1000.0)
    load = Load(started)
    turns = started.server.turns
    turns.is_active = True
    load.modest.deliver(framed(b"e1"))
    for each in load.greedy:
        each.deliver(framed(b"e1"))
    for each in load.greedy:
        each.lose()
    assert len(turns._closed) == 10
    await emptied(turns)


@in_loop
async def test_a_connection_that_cannot_go_on_does_not_keep_others_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    turns = FairTurns(lambda: now)
    went_on: list[int] = []

    def go_on(number: int) -> None:
        if number == 3:
            raise RuntimeError("a bug")
        went_on.append(number)

    def read(tenant: str, number: int) -> None:
        turn = Turn(turns, lambda: go_on(number))
        turn.tenant = tenant
        turn.on_read(1000, now - 1.0)

    turns.is_active = True
    for number in range(10):
        read("ab"[number % 2], number)
    waiting = turns.waiting
    assert waiting > 5
    await emptied(turns)
    assert len(went_on) == waiting - 1
    assert "could not continue to read from" in caplog.text


@pytest.mark.parametrize("seed", range(20))
def test_requests_of_a_connection_keep_their_order_and_no_place_is_lost(seed: int) -> None:
    """Tenants open and close connections at random times, and sharing begins and ends."""

    @in_loop
    async def run() -> None:
        choose = random.Random(seed)
        started = await rig(tick_s=1000.0)
        load = Load(started)
        turns = started.server.turns
        hosts = GREEDY, MODEST, "10.0.0.3"

        def script(peer: Peer) -> Costly:
            return Costly(load, peer)

        started.script = script
        connections: dict[MemoryTransport, list[bytes]] = {}
        for step in range(600):
            turns.is_active = choose.random() < 0.9
            if choose.random() < 0.1:
                connections[started.connect(choose.choice(hosts))[0]] = []
            if connections and choose.random() < 0.05:
                gone = choose.choice([*connections])
                gone.lose()
                sent = connections.pop(gone)
                assert gone.answers() == sent[: len(gone.answers())]
            for each, sent in connections.items():
                if choose.random() < 0.5:
                    sent.append(b"e%d" % step)
                    each.deliver(framed(sent[-1]))
            await asyncio.sleep(0)
        await emptied(turns)
        assert turns.waits > 0
        assert turns.waiting == 0
        for each, sent in connections.items():
            assert each.answers() == sent

    run()


@in_loop
async def test_all_addresses_of_an_ipv6_network_are_one_tenant() -> None:
    started = await rig()
    for number in range(1, 4):
        started.connect(f"2001:db8::{number}")
    started.connect("2001:db8:0:1::1")
    tenants = [turn.tenant for _, _, turn in started.server._connections.values()]
    assert len(set(tenants[:3])) == 1
    assert len(set(tenants)) == 2
