"""Members whose records a newer broker wrote, after a return to an older one.

The record of the member is skipped. What is known of its assignment belongs to nobody then.
"""

from __future__ import annotations

import pytest

from penstock.coordination.effects import LogRecord
from penstock.groups.consumer.records import MemberEntry, read_entry
from penstock.wire.errors import ErrorCode

from .bench import ConsumerBench, Member, code


def downgraded(rejoining: str) -> tuple[ConsumerBench, Member, Member]:
    """A group of two members, of which an older broker cannot read one."""
    bench = ConsumerBench({"orders": 6})
    a, b = Member("a"), Member("b")
    bench.join(a)
    bench.join(b)
    bench.settle_members(a, b)
    for number, record in enumerate(bench.log):
        entry = read_entry(record.key, record.value)
        if isinstance(entry, MemberEntry) and entry.member_id == rejoining:
            assert record.value is not None
            bench.log[number] = LogRecord(record.key, (77).to_bytes(2, "big") + record.value[2:])
    bench.restart()
    bench.shard.verify()
    return bench, a, b


@pytest.mark.parametrize("is_first", [False, True])
def test_a_member_that_joins_again_shares_its_partitions(is_first: bool) -> None:
    bench, a, b = downgraded("b")
    if not is_first:
        assert bench.beat(a).error_code == 0
    assert code(bench.beat(b)) is ErrorCode.UNKNOWN_MEMBER_ID
    bench.join(b)
    bench.settle_members(a, b)
    assert (len(a.owned), len(b.owned), len(a.owned | b.owned)) == (3, 3, 6)
    stored = bench.group.stored
    assert stored == bench.shard.state.image.consumer_groups["g"]
    bench.restart()
    assert bench.group.stored == stored


def test_the_others_get_the_partitions_of_a_member_that_does_not_come_back() -> None:
    bench, a, _ = downgraded("b")
    bench.settle_members(a)
    assert len(a.owned) == 6
    bench.leave(a)
    assert not bench.shard.state.image.consumer_groups["g"].currents
