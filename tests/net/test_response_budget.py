"""Responses that peers do not read are bounded over all connections."""

from __future__ import annotations

from penstock.net.response_budget import ResponseBudget

from .fakes import framed, in_loop, rig, settle


class Held:
    def __init__(self, *, is_replica: bool = False) -> None:
        self.is_replica = is_replica
        self.dropped = False

    def drop_for_memory(self) -> None:
        self.dropped = True


def test_held_bytes_count_until_they_are_released() -> None:
    budget = ResponseBudget(100)
    one, two = Held(), Held()
    budget.hold(one, 30)
    budget.hold(two, 50)
    budget.hold(one, 10)
    assert (budget.used, budget.room, budget.holders) == (60, 40, 2)
    budget.release(one)
    budget.release(one)
    assert (budget.used, budget.room, budget.holders) == (50, 50, 1)


def test_the_holders_without_progress_for_the_longest_time_are_dropped() -> None:
    """Only as many as necessary are dropped, and none that reads."""
    budget = ResponseBudget(100)
    first, reads, second, last = (Held() for _ in range(4))
    for holder in (first, reads, second):
        budget.hold(holder, 30)
    budget.hold(reads, 29)
    budget.hold(last, 60)
    assert [each.dropped for each in (first, reads, second, last)] == [True, False, True, False]
    assert budget.used == 89


def test_growth_does_not_count_as_progress() -> None:
    """A peer that asks for more and reads nothing keeps its position among those to be dropped."""
    budget = ResponseBudget(100)
    greedy, other = Held(), Held()
    budget.hold(greedy, 30)
    budget.hold(other, 30)
    budget.hold(greedy, 60)
    budget.hold(other, 50)
    assert (greedy.dropped, other.dropped) == (True, False)


def test_followers_and_the_newest_holder_are_not_dropped() -> None:
    """Replication goes on, and one response may be larger than the bound."""
    budget = ResponseBudget(100)
    follower, client = Held(is_replica=True), Held()
    budget.hold(follower, 90)
    budget.hold(client, 200)
    assert not follower.dropped
    assert not client.dropped
    assert budget.room == 0


@in_loop
async def test_connections_that_read_nothing_are_dropped_for_those_that_read() -> None:
    """The sum stays below the bound, the good peer gets all its responses, and everything is
    released.
    """
    started = await rig(response_bytes_max=1_000_000, write_buffer_bytes=1000)
    server = started.server
    good, _ = started.connect()
    silent = [started.connect(window=100)[0] for _ in range(20)]
    for transport in silent:
        transport.deliver(framed(b"b200000"))
        assert server.responses.used <= 1_000_000
        good.deliver(framed(b"b200000"))
        await settle()
    assert [len(answer) for answer in good.answers()] == [200_000] * 20
    assert [transport.is_lost() for transport in silent] == [True] * 15 + [False] * 5
    assert server.counters.connections_evicted == 15
    for transport in silent:
        transport.lose()
    assert server.responses.used == 0


@in_loop
async def test_a_follower_keeps_its_connection_when_memory_is_short() -> None:
    started = await rig(response_bytes_max=1_000_000, write_buffer_bytes=1000)
    follower, session = started.connect(window=100)
    session.peer.is_replica = True
    silent = [started.connect(window=100)[0] for _ in range(10)]
    follower.deliver(framed(b"b200000"))
    for transport in silent:
        transport.deliver(framed(b"b200000"))
    await settle()
    assert not follower.is_lost()
    follower.take(1 << 20)
    assert len(follower.answers()[0]) == 200_000
