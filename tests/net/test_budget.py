"""The request bytes of all connections together are bounded, and nobody starves."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.net.budget import RequestBudget

from .fakes import framed, in_loop, rig, settle


class Asker:
    def __init__(self) -> None:
        self.granted = 0

    def on_budget(self) -> None:
        self.granted += 1


def test_grants_come_in_the_order_of_asking() -> None:
    """A small request does not overtake a large one that waits."""
    budget = RequestBudget(100)
    first, large, small = Asker(), Asker(), Asker()
    assert budget.ask(first, 60)
    assert not budget.ask(large, 50)
    assert not budget.ask(small, 1)
    assert budget.exhausted
    budget.give_back(5)
    assert (large.granted, small.granted) == (0, 0)
    budget.give_back(55)
    assert (large.granted, small.granted) == (1, 1)
    assert budget.used == 51
    assert not budget.exhausted


def test_a_frame_larger_than_the_budget_needs_half_of_it_free() -> None:
    """Neither a busy server nor a few parked bytes keep it out for ever."""
    budget = RequestBudget(100)
    busy, large = Asker(), Asker()
    assert budget.ask(busy, 51)
    assert not budget.ask(large, 1000)
    budget.give_back(1)
    assert large.granted == 1
    assert budget.used == 1050


def test_with_nothing_left_nobody_begins() -> None:
    """Who asks for leave to read on, with no size yet, waits for the first byte to be free."""
    budget = RequestBudget(100)
    busy, beginner = Asker(), Asker()
    assert budget.ask(busy, 100)
    assert budget.exhausted
    assert not budget.ask(beginner, 0)
    budget.give_back(1)
    assert beginner.granted == 1
    assert (budget.used, budget.exhausted) == (99, False)


def test_one_who_waited_and_left_holds_up_nobody() -> None:
    """The next in line takes the place."""
    budget = RequestBudget(100)
    busy, gone, next_one = Asker(), Asker(), Asker()
    assert budget.ask(busy, 60)
    assert not budget.ask(gone, 90)
    assert not budget.ask(next_one, 40)
    budget.forget(gone)
    assert (gone.granted, next_one.granted) == (0, 1)
    assert budget.waiting == 0


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=60))
def test_the_bound_holds_and_all_are_served(steps: list[tuple[bool, int]]) -> None:
    """Frames of at most half the budget never pass the bound; all are granted in the end."""
    budget = RequestBudget(100)
    held: list[int] = []
    queue: list[tuple[Asker, int]] = []
    for give, size in steps:
        if give and held:
            budget.give_back(held.pop(0))
        else:
            asker = Asker()
            if budget.ask(asker, size):
                held.append(size)
            else:
                queue.append((asker, size))
        while queue and queue[0][0].granted:
            held.append(queue.pop(0)[1])
        assert not any(asker.granted for asker, _ in queue)
        assert budget.used == sum(held) <= 100
    while held:
        budget.give_back(held.pop())
        while queue and queue[0][0].granted:
            held.append(queue.pop(0)[1])
    assert not queue
    assert (budget.used, budget.exhausted) == (0, False)


@in_loop
async def test_a_frame_beyond_the_budget_is_not_read() -> None:
    """Of a large frame no more than one read is in memory until there is room for all of it."""
    started = await rig(request_bytes_max=10_000, read_buffer_bytes=100)
    busy, session = started.connect()
    busy.deliver(framed(b"f" + bytes(5999)))
    assert started.server.budget.used == 6000
    second, _ = started.connect()
    second.deliver(framed(b"e" + bytes(4999)))
    third, _ = started.connect()
    third.deliver(framed(b"e3"))
    fourth, _ = started.connect()
    fourth.deliver(framed(b"e4"))
    assert len(second.inbox) == 5004 - 100
    assert started.server.budget.used == 6000
    session.finish(session.frames[0])
    await settle()
    assert len(second.answers()[0]) == 5000
    assert (third.answers(), fourth.answers()) == ([b"e3"], [b"e4"])
    await settle()
    assert (started.server.budget.used, started.server.budget.waiting) == (0, 0)
    assert all(transport.is_reading() for transport in (busy, second, third, fourth))


@in_loop
async def test_half_read_frames_can_always_be_finished() -> None:
    """A budget taken up by begun frames alone does not lock up: they have their bytes."""
    started = await rig(request_bytes_max=1000, read_buffer_bytes=50, frame_bytes_max=500)
    connections = [started.connect()[0] for _ in range(6)]
    body = b"e" + bytes(399)
    for transport in connections:
        transport.deliver(framed(body)[:4])
        transport.deliver(framed(body)[4:60])
    assert started.server.budget.used == 808
    assert started.server.budget.waiting == 4
    for transport in connections:
        transport.deliver(framed(body)[60:])
        await settle()
    assert [len(transport.answers()) for transport in connections] == [1] * 6
    assert (started.server.budget.used, started.server.budget.waiting) == (0, 0)


@in_loop
async def test_a_lost_connection_gives_its_bytes_back() -> None:
    """Pending, waiting and half-read frames count no longer, nor does its place in the queue."""
    started = await rig(request_bytes_max=1000, requests_in_flight_max=1)
    first, _ = started.connect()
    first.deliver(framed(b"f" + bytes(299), b"e" + bytes(299)) + framed(b"e" + bytes(299))[:50])
    assert started.server.budget.used == 300 + 300 + 304
    second, _ = started.connect()
    second.deliver(framed(b"e" + bytes(299))[:50])
    third, _ = started.connect()
    third.deliver(framed(b"e" + bytes(399))[:50])
    assert started.server.budget.waiting == 2
    second.lose()
    assert started.server.budget.waiting == 1
    first.lose()
    assert (started.server.budget.used, started.server.budget.waiting) == (404, 0)
    third.deliver(framed(b"e" + bytes(399))[50:])
    assert started.server.budget.used == 0
    assert len(third.answers()) == 1


@in_loop
async def test_an_exhausted_budget_makes_reads_small() -> None:
    """Whoever has not noticed yet takes only a little of what is already too much."""
    started = await rig(request_bytes_max=100)
    busy, session = started.connect()
    busy.deliver(framed(b"f" + bytes(199)))
    other, _ = started.connect()
    other.deliver(framed(*[b"e" + bytes(999)] * 20))
    assert len(other.inbox) == 20 * 1004 - 4096
    assert not other.is_reading()
    session.finish(session.frames[0])
    await settle()
    assert len(other.answers()) == 20
