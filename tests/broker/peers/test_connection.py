"""A connection to another broker: one request at a time, each with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from broker.leader_script import Asked, Leader, ScriptNetwork, batch, given
from penstock.broker.peers.connection import Peer, PeerLost, connect_peer
from penstock.ports import Listener, Pace, Transport
from penstock.testing.slowness import patient
from penstock.wire.messages import FetchRequest, FetchResponse


def run_case(case: Coroutine[Any, Any, None]) -> None:
    async def run() -> None:
        async with asyncio.timeout(patient(120)):
            await case

    asyncio.run(run())


async def connected(leader: Leader, response_bytes_max: int = 1 << 20) -> Peer:
    return await connect_peer(
        ScriptNetwork(lambda _: leader),
        ("h", 9000),
        client_id="test",
        timeout_s=60,
        response_bytes_max=response_bytes_max,
    )


def ask(peer: Peer, timeout_s: float = 60) -> asyncio.Task[FetchResponse]:
    return asyncio.create_task(peer.ask(FetchRequest(), 17, FetchResponse, timeout_s))


def test_requests_are_answered_one_after_the_other() -> None:
    """Large responses too, in whatever pieces they arrive."""

    async def case() -> None:
        leader = Leader()
        peer = await connected(leader)
        for size in (10, 200_000):
            asking = ask(peer)
            asked = await leader.asked()
            asked.answer(given("t", 0, batch(0, b"x" * size)))
            answer = await asking
            assert answer.responses[0].partitions[0].records == batch(0, b"x" * size)
        assert peer.is_open

    run_case(case())


def test_a_second_concurrent_request_is_an_error() -> None:
    """Code that needs two at a time opens two connections."""

    async def case() -> None:
        leader = Leader()
        peer = await connected(leader)
        asking = ask(peer)
        await leader.asked()
        with pytest.raises(RuntimeError, match="before it had answered"):
            await ask(peer)
        peer.close()
        with pytest.raises(PeerLost):
            await asking

    run_case(case())


def test_a_request_that_times_out_ends_the_connection() -> None:
    """A late response could not be distinguished from the next one."""

    async def case() -> None:
        leader = Leader()
        peer = await connected(leader)
        with pytest.raises(PeerLost, match=r"did not answer Fetch within 0\.01 s"):
            await ask(peer, 0.01)
        assert not peer.is_open
        with pytest.raises(PeerLost, match="did not answer Fetch"):
            await ask(peer)

    run_case(case())


def test_a_cancelled_request_ends_the_connection() -> None:
    """Its response may still arrive."""

    async def case() -> None:
        leader = Leader()
        peer = await connected(leader)
        asking = ask(peer)
        await leader.asked()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert not peer.is_open

    run_case(case())


@pytest.mark.parametrize("reply", ["wrong", "garbage", "unasked", "huge", "cut"])
def test_an_invalid_response_ends_the_connection(reply: str) -> None:
    """The waiting request fails with PeerLost."""

    async def case() -> None:
        leader = Leader()
        peer = await connected(leader, 1000)
        asking = ask(peer)
        asked = await leader.asked()
        if reply == "wrong":
            Asked(asked.line, 17, 999, asked.request).answer(FetchResponse())
        elif reply == "garbage":
            asked.line.deliver(b"\0\0\0\x08\0\0\0\x01abcd")
        elif reply == "unasked":
            asked.answer(FetchResponse())
            asked.answer(FetchResponse())
            await asking
            assert not peer.is_open
            return
        elif reply == "huge":
            asked.line.deliver(b"\x7f\0\0\0abcd")
        else:
            asked.line.cut()
        with pytest.raises(PeerLost):
            await asking
        assert not peer.is_open

    run_case(case())


def test_the_error_for_an_unreachable_broker_says_why() -> None:
    """It refused the connection, or did not respond in time."""

    class Silent:
        async def listen(
            self, host: str, port: int, receiver: Any, pace: Pace | None = None
        ) -> Listener:
            raise AssertionError

        async def connect(self, host: str, port: int, receiver: Any, timeout_s: float) -> Transport:
            await asyncio.sleep(60)
            raise AssertionError

    async def case() -> None:
        leader = Leader()
        leader.refuses = True
        with pytest.raises(PeerLost, match="h:9000 cannot be reached: refused by the test"):
            await connected(leader)
        with pytest.raises(PeerLost, match=r"did not accept a connection within 0\.01 s"):
            await connect_peer(
                Silent(), ("h", 9), client_id="t", timeout_s=0.01, response_bytes_max=9
            )

    run_case(case())
