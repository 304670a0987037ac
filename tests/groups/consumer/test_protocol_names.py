"""SyncGroup names the protocol of the generation, which changes when a group is converted.

INCONSISTENT_GROUP_PROTOCOL ends a client. One that names the protocol from before the conversion
has done nothing wrong, and is told to join again.
"""

from __future__ import annotations

from penstock.wire.errors import ErrorCode
from penstock.wire.messages import SyncGroupResponse

from .bench import ConsumerBench, Member
from .classic import ClassicClient, send


def error(bench: ConsumerBench, token: int) -> ErrorCode:
    response = bench.replies[token]
    assert isinstance(response, SyncGroupResponse)
    return ErrorCode(response.error_code)


def settle(bench: ConsumerBench, member: Member, *clients: ClassicClient) -> None:
    """Lets all members work until the consumer group is stable."""
    for _ in range(12):
        assert bench.beat(member).error_code == 0
        for client in clients:
            client.step(bench)
        bench.advance(1_000)
        if bench.state == "Stable" and all(each.phase == "running" for each in clients):
            return
    raise AssertionError(f"the group is {bench.state}: {clients}")


def prefers_another(bench: ConsumerBench) -> tuple[ClassicClient, ClassicClient]:
    """Two clients, of which the first prefers a protocol that the other does not support."""
    x = ClassicClient("x", protocols=("cooperative-sticky", "range"))
    return x, ClassicClient("y", protocols=("range",))


def test_a_sync_with_the_protocol_of_the_classic_group_is_told_to_join_again() -> None:
    """INCONSISTENT_GROUP_PROTOCOL would end the client."""
    bench = ConsumerBench()
    x, y = prefers_another(bench)
    for _ in range(4):
        for client in (x, y):
            if client.phase != "joined":
                client.step(bench)
        bench.advance(3_000)
        for client in (x, y):
            client.take(bench)
    assert (x.phase, y.phase) == ("joined", "joined")
    chosen = bench.shard.state.require_classic("g").protocol_name
    assert chosen == "range"
    a = Member("a")
    assert bench.join(a).error_code == 0
    request = x.syncs()
    request.protocol_name = chosen
    token = send(bench, request, 5)
    assert error(bench, token) is ErrorCode.REBALANCE_IN_PROGRESS
    request.protocol_name = "unheard-of"
    x.phase = y.phase = "out"
    settle(bench, a, x, y)
    request.generation_id = x.generation
    token = send(bench, request, 5)
    assert error(bench, token) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    request.protocol_name = chosen
    token = send(bench, request, 5)
    assert error(bench, token) is ErrorCode.REBALANCE_IN_PROGRESS, "not its first"


def test_a_sync_with_the_protocol_of_the_consumer_group_is_told_to_join_again() -> None:
    """The group is downgraded, and chooses the protocol that all members support."""
    bench = ConsumerBench()
    x, y = prefers_another(bench)
    a = Member("a")
    bench.join(a)
    settle(bench, a, x, y)
    x.phase = "out"
    x.step(bench)
    assert x.phase == "joined"
    request = x.syncs()
    assert request.protocol_name == "cooperative-sticky"
    bench.leave(a)
    assert bench.shard.state.require_classic("g").protocol_name == "range"
    token = send(bench, request, 5)
    assert error(bench, token) is ErrorCode.REBALANCE_IN_PROGRESS
