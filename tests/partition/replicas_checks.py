"""The invariants that must hold after every step of the random walk.

The numbers are those of the correctness notes.

I1   logs agree below their high watermarks, and wherever an offset has the same epoch in both
I2   the leader, and I3 every candidate for leadership, has everything that was ever committed
I4   the leader counts every in-sync replica
I6   no eligible leader replica is in sync, and there are none while enough replicas are in sync
I7   there is one leader for each epoch; epochs never decrease within a log
I8   the latest offset that clients receive never goes back
I10  at least one replica still has everything that was committed
I11  the partition epoch never goes back
E3   every acknowledged record is there in the end; E14 the cluster recovers by itself
"""

from __future__ import annotations

from penstock.metadata.model import NO_LEADER

from .replicas_model import Node, Record, Violated
from .replicas_roles import Roles


def check(world: Roles) -> None:
    _check_metadata(world)
    _check_logs(world)
    _check_members(world)
    _check_maximal(world)


def _check_metadata(world: Roles) -> None:
    partition = world.partition
    if {*partition.isr} & {*partition.eligible_leaders}:
        raise Violated(f"I6: in sync and eligible overlap: {partition}")
    enough = len(partition.isr) >= world.min_insync
    if enough and partition.eligible_leaders and not world.review_due:
        raise Violated(f"I6: eligible leaders beside enough in sync: {partition}")
    if partition.leader != NO_LEADER:
        leader = (partition.leader, partition.leader_broker_epoch)
        if world.seen.leaders.setdefault(partition.leader_epoch, leader) != leader:
            raise Violated(f"I7: epoch {partition.leader_epoch} has two leaders")
    previous = world.history[-2].partition if len(world.history) > 1 else partition
    if previous.partition_epoch > partition.partition_epoch:
        raise Violated("I11: the partition epoch went back")
    if partition != world.history[-1].partition:
        raise Violated("the history does not show what the store holds")


def _check_logs(world: Roles) -> None:
    committed = world.seen.committed
    for node in world.nodes:
        epochs = [record.epoch for record in node.records]
        if epochs != sorted(epochs):
            raise Violated(f"I7: epochs fall in the log of {node.id}: {epochs}")
        if node.records[: node.high_watermark] != committed[: node.high_watermark]:
            raise Violated(f"I1: {node.id} differs below its high watermark {node.high_watermark}")
    for index, one in enumerate(world.nodes):
        for other in world.nodes[index + 1 :]:
            shared = min(one.end, other.end)
            while shared and one.records[shared - 1].epoch != other.records[shared - 1].epoch:
                shared -= 1
            if one.records[:shared] != other.records[:shared]:
                raise Violated(f"I1: the logs of {one.id} and {other.id} do not match")


def _check_members(world: Roles) -> None:
    partition, brokers = world.partition, world.cluster.image.brokers
    committed = world.seen.committed
    members = partition.isr + partition.eligible_leaders
    whole = [each for each in members if _holds(world.nodes[each], committed)]
    if members and not whole:
        raise Violated(f"I10: no replica of {partition} has all {len(committed)} committed")
    for each in members:
        node, info = world.nodes[each], brokers.get(each)
        if info is None or not node.up or node.broker_epoch != info.broker_epoch:
            continue
        noted = partition.member_epoch(each)
        counts = world.synced or info.has_kept(noted)
        if counts and each not in whole:
            name = "I2: leader" if each == partition.leader else "I3: candidate"
            raise Violated(
                f"{name} {each} has {node.end} records and {len(committed)} are committed"
            )


def _holds(node: Node, committed: list[Record]) -> bool:
    return node.records[: len(committed)] == committed


def _check_maximal(world: Roles) -> None:
    partition = world.partition
    if partition.leader == NO_LEADER:
        return
    held = world.nodes[partition.leader].leadership
    if held is not None and held.epoch == partition.leader_epoch:
        missing = {*partition.isr} - held.maximal_isr
        if missing:
            raise Violated(f"I4: {missing} are in sync and the leader does not count them")
