"""The request bytes of all connections together are bounded, and no connection starves."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.net.budget import TURN_BYTES, RequestBudget

from .fakes import framed, in_loop, rig, settle


class Asker:
    def __init__(self, queue: str = "") -> None:
        self.queue = queue
        self.granted = 0

    def on_budget(self) -> None:
        self.granted += 1


def test_connections_that_wait_for_the_budget_read_in_the_order_of_asking() -> None:
    """Only as many are resumed at once as the budget has space for."""
    budget = RequestBudget(2 * TURN_BYTES)
    budget.charge(2 * TURN_BYTES)
    askers = [Asker() for _ in range(4)]
    assert not any(budget.may_read(asker, begun=False) for asker in askers)
    budget.give_back(1)
    assert [asker.granted for asker in askers] == [1, 0, 0, 0]
    budget.give_back(2 * TURN_BYTES - 1)
    assert [asker.granted for asker in askers] == [1, 1, 1, 0]
    assert budget.exhausted
    budget.charge(0)
    budget.give_back(0)
    assert [asker.granted for asker in askers] == [1, 1, 1, 1]
    assert not budget.exhausted


def test_a_tenant_with_many_connections_gets_as_many_turns_as_one_with_a_single_one() -> None:
    budget = RequestBudget(TURN_BYTES)
    budget.charge(TURN_BYTES)
    greedy = [Asker("greedy") for _ in range(50)]
    assert not any(budget.may_read(asker, begun=False) for asker in greedy)
    modest = Asker("modest")
    for turn in range(1, 11):
        assert not budget.may_read(modest, begun=False)
        for _ in range(2):
            budget.give_back(1)
            budget.charge(1)
        assert modest.granted == turn
        assert sum(asker.granted for asker in greedy) == turn
    assert [asker.granted for asker in greedy[:11]] == [1] * 10 + [0]


def test_a_connection_whose_tenant_changes_while_it_waits_leaves_nothing_behind() -> None:
    """Its login may end meanwhile."""
    budget = RequestBudget(100)
    budget.charge(100)
    asker = Asker("10.0.0.1")
    assert not budget.may_read(asker, begun=False)
    asker.queue = "User:alice"
    assert not budget.may_read(asker, begun=False)
    budget.done(asker)
    assert budget.waiting == 0
    budget.give_back(100)
    assert not budget.exhausted
    assert asker.granted == 0


def test_with_space_left_no_connection_waits() -> None:
    """No connection is favored either."""
    budget = RequestBudget(100)
    budget.hold(99)
    asker = Asker()
    assert budget.may_read(asker, begun=True)
    assert budget.favoured is None


def test_one_half_read_request_at_a_time_is_favoured() -> None:
    """When half-read requests fill the budget, it lets them be finished one after the other."""
    budget = RequestBudget(100)
    first, second, third = Asker(), Asker(), Asker()
    budget.hold(100)
    assert budget.may_read(first, begun=True)
    assert not budget.may_read(second, begun=True)
    assert not budget.may_read(third, begun=True)
    budget.hold(50)
    assert budget.may_read(first, begun=True)
    budget.hold(-40)
    budget.done(first)
    assert (second.granted, third.granted) == (1, 0)
    assert budget.favoured is second


def test_a_connection_without_a_half_read_request_is_not_favoured() -> None:
    """It might have nothing to send, and would block those that have."""
    budget = RequestBudget(100)
    idle, begun = Asker(), Asker()
    budget.hold(100)
    assert not budget.may_read(idle, begun=False)
    assert budget.may_read(begun, begun=True)
    assert budget.favoured is begun
    assert idle.granted == 0


def test_no_connection_is_favoured_while_responses_will_free_the_budget() -> None:
    """If complete requests hold most of the budget, their responses give it back."""
    budget = RequestBudget(100)
    asker = Asker()
    budget.charge(51)
    budget.hold(49)
    assert not budget.may_read(asker, begun=True)
    assert budget.favoured is None
    budget.give_back(1)
    assert asker.granted == 1


def test_a_waiting_connection_that_leaves_does_not_block_the_next() -> None:
    budget = RequestBudget(100)
    favoured, gone, next_one = Asker(), Asker(), Asker()
    budget.hold(100)
    assert budget.may_read(favoured, begun=True)
    assert not budget.may_read(gone, begun=True)
    assert not budget.may_read(next_one, begun=True)
    budget.done(gone)
    budget.done(favoured)
    assert (gone.granted, next_one.granted) == (0, 1)
    assert budget.waiting == 0


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=12), st.integers(0, 300))
def test_every_half_read_request_is_completed_and_the_bound_holds(
    sizes: list[int], parked: int
) -> None:
    """The sum exceeds the bound by at most one request, plus one step for each connection."""
    budget = RequestBudget(300)
    budget.charge(parked)
    askers = {Asker(): size for size in sizes}
    arrived = dict.fromkeys(askers, 0)
    turns = dict.fromkeys(askers, 0)
    waiting: set[Asker] = set()
    for _ in range(2000):
        for asker, size in askers.items():
            if asker in waiting and asker.granted == turns[asker]:
                continue
            waiting.discard(asker)
            turns[asker] = asker.granted
            if arrived[asker] == size:
                continue
            step = min(7, size - arrived[asker])
            arrived[asker] += step
            budget.hold(step)
            if arrived[asker] == size:
                budget.hold(-size)
                budget.done(asker)
            elif not budget.may_read(asker, begun=True):
                waiting.add(asker)
            assert budget.used <= max(300, parked) + max(sizes) + 7 * len(sizes)
        if parked and budget.waiting:
            budget.give_back(parked)
            parked = 0
    assert list(arrived.values()) == sizes
    budget.give_back(parked)
    assert (budget.used, budget.half_read, budget.waiting, budget.exhausted) == (0, 0, 0, False)


@in_loop
async def test_a_length_without_data_takes_nothing_from_the_budget() -> None:
    """Peers that announce more than the budget has, and send none of it, do not block other
    peers.
    """
    started = await rig(request_bytes_max=100_000, frame_bytes_max=90_000)
    for _ in range(10):
        silent, _ = started.connect()
        silent.deliver(framed(bytes(90_000))[:4])
    assert started.server.budget.used <= 10 * 8 * 4
    good, _ = started.connect()
    good.deliver(framed(b"e" + bytes(80_000)))
    assert len(good.answers()[0]) == 80_001


@in_loop
async def test_a_peer_that_stalls_in_a_request_is_dropped_when_others_wait() -> None:
    """It is dropped after two ticks, before its frame timeout. A peer that keeps sending is not
    dropped.
    """
    started = await rig(large_request_bytes_max=400_000, frame_bytes_max=300_000)
    body = framed(b"e" + bytes(299_999))
    stalled = [started.connect()[0] for _ in range(2)]
    for transport in stalled:
        transport.deliver(body[:150_000])
    busy, _ = started.connect()
    busy.deliver(body[:150_000])
    assert not busy.is_reading()
    for tick in range(3):
        await started.ticks(1)
        busy.deliver(body[150_000 + tick * 20_000 : 170_000 + tick * 20_000])
        await settle()
    assert [transport.is_lost() for transport in stalled] == [True, True]
    assert not busy.is_lost()
    busy.deliver(body[210_000:])
    await settle()
    assert len(busy.answers()[0]) == 300_000


@in_loop
async def test_small_requests_do_not_wait_for_large_ones_that_stall() -> None:
    """Any number of peers may announce large requests and stop half way. The memory that these take
    is bounded.
    """
    started = await rig(large_request_bytes_max=4_000_000, frame_bytes_max=1 << 20, tick_s=3600)
    server = started.server
    body = framed(bytes(1 << 20))
    good, _ = started.connect()
    for number in range(60):
        hostile, _ = started.connect()
        hostile.deliver(body[:256_000])
        good.deliver(framed(b"e%d" % number, b"e" + bytes(20_000)))
        await settle()
        assert len(good.answers()) == 2 * (number + 1)
    assert server.large_requests.exhausted
    assert server.large_requests.used < 6_000_000
    assert server.budget.used == 0


@in_loop
async def test_a_slow_request_is_not_dropped_while_no_other_waits() -> None:
    """With memory for all, a request may take as long as the frame timeout allows."""
    started = await rig(request_bytes_max=400_000)
    slow, _ = started.connect()
    body = framed(b"e" + bytes(99_999))
    slow.deliver(body[:50_000])
    await started.ticks(10)
    slow.deliver(body[50_000:])
    assert len(slow.answers()[0]) == 100_000


@in_loop
async def test_a_request_that_holds_memory_and_makes_no_progress_is_dropped() -> None:
    """It is dropped long before the frame timeout, even if no other request waits for its
    memory.
    """
    started = await rig(frame_stall_timeout_s=10, frame_timeout_s=60)
    body = framed(b"e" + bytes(299_999))
    stalled, slow, small = (started.connect()[0] for _ in range(3))
    stalled.deliver(body[:100_000])
    slow.deliver(body[:100_000])
    small.deliver(body[:10])
    for tick in range(12):
        await started.ticks(1)
        stalled.deliver(body[100_000 + tick : 100_001 + tick])
        slow.deliver(body[100_000 + tick * 3000 : 103_000 + tick * 3000])
        small.deliver(body[10 + tick : 11 + tick])
    assert [each.is_lost() for each in (stalled, slow, small)] == [True, False, False]
    assert started.server.counters.connections_dropped == 1
    slow.deliver(body[136_000:])
    assert len(slow.answers()[0]) == 300_000
    assert started.server.budget.used < 1000


@in_loop
async def test_the_time_during_which_a_peer_was_not_read_does_not_count_as_a_stall() -> None:
    """A request behind others is not read until they are answered, so its sender has to wait
    too.
    """
    started = await rig(frame_stall_timeout_s=10, requests_in_flight_max=1)
    transport, session = started.connect()
    rest = framed(b"e" + bytes(99_999))
    transport.deliver(framed(b"f1", b"f2") + rest[:50_000])
    await started.ticks(5)
    session.finish(b"f1")
    await settle()
    await started.ticks(30)
    session.finish(b"f2")
    await settle()
    await started.ticks(8)
    transport.deliver(rest[50_000:])
    assert len(transport.answers()[-1]) == 100_000


@in_loop
async def test_a_large_frame_is_not_read_further_while_the_budget_is_full() -> None:
    """While pending responses will free the budget, the rest of the frame stays with its sender."""
    started = await rig(request_bytes_max=10_000, read_buffer_bytes=100)
    busy, session = started.connect()
    busy.deliver(framed(b"f" + bytes(5999)))
    assert started.server.budget.used == 6000
    second, _ = started.connect()
    second.deliver(framed(b"e" + bytes(4999)))
    assert not second.is_reading()
    assert len(second.inbox) > 3000
    third, _ = started.connect()
    third.deliver(framed(b"e3"))
    session.finish(session.frames[0])
    await settle()
    assert len(second.answers()[0]) == 5000
    assert third.answers() == [b"e3"]
    await settle()
    assert (started.server.budget.used, started.server.budget.waiting) == (0, 0)
    assert all(transport.is_reading() for transport in (busy, second, third))


@in_loop
async def test_half_read_frames_can_always_be_finished() -> None:
    """A budget that half-read frames use up completely does not deadlock."""
    started = await rig(request_bytes_max=1000, read_buffer_bytes=50, frame_bytes_max=500)
    connections = [started.connect()[0] for _ in range(6)]
    body = b"e" + bytes(399)
    for transport in connections:
        transport.deliver(framed(body)[:4])
        transport.deliver(framed(body)[4:60])
    assert started.server.budget.exhausted
    for transport in connections:
        transport.deliver(framed(body)[60:])
        await settle()
    for _ in range(6):
        await settle()
    assert [len(transport.answers()) for transport in connections] == [1] * 6
    assert (started.server.budget.used, started.server.budget.waiting) == (0, 0)


@in_loop
async def test_a_lost_connection_gives_its_bytes_back() -> None:
    """Its pending, queued and half-read frames no longer count, and it leaves the queue for the
    budget.
    """
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
    assert (started.server.budget.used, started.server.budget.waiting) == (400, 0)
    third.deliver(framed(b"e" + bytes(399))[50:])
    assert started.server.budget.used == 0
    assert len(third.answers()) == 1


@in_loop
async def test_closing_gives_back_the_bytes_of_a_half_read_frame() -> None:
    """At once, even if earlier requests take long to be answered."""
    started = await rig(request_bytes_max=1000)
    transport, session = started.connect()
    transport.deliver(framed(b"f1", b"c2") + framed(b"e" + bytes(399))[:200])
    assert session.frames == [b"f1", b"c2"]
    assert started.server.budget.half_read == 0
    assert not transport.is_lost()


@in_loop
async def test_an_exhausted_budget_makes_reads_small() -> None:
    """A connection that has not been paused yet adds only a little to what is already too much."""
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
