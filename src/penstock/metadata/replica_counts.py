"""Adds replicas to partitions that have too few, and chooses their brokers.

A topic that was created while brokers were missing keeps the replicas it got. The existing replicas
stay in their order, so nothing moves and the preferred leader stays the same. New replicas go to
racks that have no replica of the partition, then to the brokers with the fewest replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from penstock.metadata.rebalance import Placed, Step


class TooFewBrokers(Exception):
    """There are fewer brokers than requested replicas."""

    def __init__(self, wanted: int, brokers: Sequence[int]) -> None:
        super().__init__(
            f"{wanted} replicas need {wanted} brokers, but only {list(brokers)} can take "
            "replicas: start more brokers, or undrain one (penstock cluster undrain)"
        )


def add_replicas(
    racks: Mapping[int, str | None],
    placed: Sequence[Placed],
    topics: Collection[str],
    replicas: int,
    exclude: Collection[int] = (),
) -> list[Step]:
    """Returns the changes that give every partition of these topics at least `replicas` replicas.

    `racks` are the running brokers. Those in `exclude` get no new replicas.
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
