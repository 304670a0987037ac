"""For any mix of peers, requests, responses and slowness, the server keeps order and its limits."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from .fakes import MemoryTransport, Rig, Script, framed, rig, settle

BODIES = st.sampled_from([b"e", b"f", b"s", b"n", b"b3000", b"e" * 300, b"f" * 700])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 2), st.lists(BODIES, min_size=1, max_size=8)),
        st.tuples(st.just("read"), st.integers(0, 2), st.integers(1, 5000)),
        st.tuples(st.just("finish"), st.integers(0, 2), st.integers(0, 10)),
        st.tuples(st.just("lose"), st.integers(0, 2), st.none()),
    ),
    max_size=40,
)


class World:
    """Three peers. For each one it knows what was sent and what should come back."""

    def __init__(self, started: Rig) -> None:
        self.started = started
        self.peers: list[tuple[MemoryTransport, Script]] = []
        self.sent: list[list[bytes]] = []
        self.cut: list[bytes] = []
        self.number = 0
        for _ in range(3):
            self.peers.append(started.connect(window=0))
            self.sent.append([])
            self.cut.append(b"")

    def send(self, which: int, kinds: list[bytes], cut: int) -> None:
        """Sends frames, the last of them in two pieces."""
        bodies = []
        for kind in kinds:
            self.number += 1
            bodies.append(kind if kind[:1] == b"b" else kind + b"%06d" % self.number)
        self.sent[which] += bodies
        stream = self.cut[which] + framed(*bodies)
        end = len(stream) - cut % 7
        self.cut[which] = stream[end:]
        self.peers[which][0].deliver(stream[:end])

    def expected(self, which: int) -> list[bytes]:
        return [
            bytes(3000) if body[:1] == b"b" else body
            for body in self.sent[which]
            if body[:1] != b"n"
        ]

    def check(self) -> None:
        for which, (transport, session) in enumerate(self.peers):
            assert session.frames == self.sent[which][: len(session.frames)]
            whole = framed(*self.expected(which))
            assert whole.startswith(bytes(transport.received + transport.unsent))
            assert transport.unsent_most <= 1000 + 3004 + (64 << 10)
            assert len(session.futures) <= 5
            assert len(session.futures) == 1 or not any(
                name[:1] == b"s" for name in session.futures
            )
        open_frames = sum(
            len(body)
            for _, session in self.peers
            for body in session.frames
            if body[:1] in (b"f", b"s")
        )
        assert 0 <= self.started.server.budget.used <= open_frames + 3 * 8000


@settings(deadline=None, max_examples=150)
@given(steps=STEPS, cuts=st.integers(0, 6))
def test_every_peer_gets_its_responses_in_order_and_the_budget_is_returned(
    steps: list[tuple[str, int, int | list[bytes] | None]], cuts: int
) -> None:
    """The limits hold after every step."""

    async def scenario() -> None:
        world = World(
            await rig(
                requests_in_flight_max=4,
                bytes_in_flight_max=2000,
                request_bytes_max=3000,
                read_buffer_bytes=500,
                write_buffer_bytes=1000,
            )
        )
        for action, which, argument in steps:
            transport, session = world.peers[which]
            if action == "lose":
                transport.lose()
                world.peers[which] = world.started.connect(window=0)
                world.sent[which], world.cut[which] = [], b""
            elif action == "send":
                assert isinstance(argument, list)
                world.send(which, argument, cuts)
            else:
                assert isinstance(argument, int)
                if action == "read":
                    transport.take(argument)
                elif session.futures:
                    session.finish(list(session.futures)[argument % len(session.futures)])
            await settle()
            world.check()
        await finish(world)

    asyncio.run(scenario())


async def finish(world: World) -> None:
    """Sends what was held back, reads and finishes everything. Nothing may be left anywhere."""
    for which, (transport, _) in enumerate(world.peers):
        transport.deliver(world.cut[which])
        transport.take(1 << 30)
    for _ in range(200):
        await settle()
        if not any(session.futures for _, session in world.peers):
            break
        for _, session in world.peers:
            session.finish(*session.futures)
    await settle()
    for which, (transport, session) in enumerate(world.peers):
        assert transport.answers() == world.expected(which)
        assert session.frames == world.sent[which]
        assert transport.is_reading()
    budget = world.started.server.budget
    assert (budget.used, budget.waiting, budget.exhausted) == (0, 0, False)
