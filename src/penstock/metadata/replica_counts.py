"""More replicas for partitions that have too few: which brokers take them.

A topic that was created while brokers were missing keeps the replicas it got. The replicas that are
there stay, in their order, so that nothing moves and the preferred leader stays the same. New ones
go to racks that have none of the partition, then to the brokers with the fewest replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from penstock.metadata.rebalance import Placed, Step


class TooFewBrokers(Exception):
    """There are not as many brokers as replicas are wanted."""

    def __init__(self, wanted: int, brokers: Sequence[int]) -> None:
        super().__init__(
            f"{wanted} replicas need {wanted} brokers, and {list(brokers)} can take replicas: "
            "start more brokers, or undrain one (penstock cluster undrain)"
        )


def add_replicas(
    racks: Mapping[int, str | None],
    placed: Sequence[Placed],
    topics: Collection[str],
    replicas: int,
    exclude: Collection[int] = (),
) -> list[Step]:
    """What to change so that every partition of these topics has so many replicas or more.

    `racks` names the running brokers, `exclude` those of them that get no new replicas.
    """
    loads = Counter(each for partition in placed for each in partition.replicas)
    usable = sorted(racks.keys() - set(exclude))
    steps = []
    for partition in placed:
        after = list(partition.replicas)
        if partition.topic not in topics or len(after) >= replicas:
            continue
        others = [each for each in usable if each not in after]
        if len(after) + len(others) < replicas:
            raise TooFewBrokers(replicas, usable)
        while len(after) < replicas:
            used = {racks.get(each) for each in after}
            chosen = min(others, key=lambda each: (racks[each] in used, loads[each], each))
            others.remove(chosen)
            loads[chosen] += 1
            after.append(chosen)
        steps.append(
            Step(
                partition.topic,
                partition.index,
                partition.replicas,
                tuple(after),
                partition.size_bytes,
            )
        )
    return steps
