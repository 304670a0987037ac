"""Places the replicas of new partitions on brokers.

Brokers are arranged in a ring in which neighbors are in different racks as far as possible. Leaders
are assigned round the ring from `start_index`, so the number of partitions that brokers lead
differs by at most one. The followers of each partition go to racks that have no replica of it yet,
then to the brokers with the fewest replicas, then along the ring. The starting point on the ring
moves after each full round, so the partitions of a broker that dies are spread over many others.
The same arguments always give the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest


def ring(racks: Mapping[int, str | None]) -> tuple[int, ...]:
    """Returns the broker ids, alternating between racks. Brokers without a rack count as one
    rack."""
    by_rack: dict[str, list[int]] = {}
    for broker_id in sorted(racks):
        by_rack.setdefault(racks[broker_id] or "", []).append(broker_id)
    rounds: Iterable[tuple[int | None, ...]] = zip_longest(
        *(by_rack[rack] for rack in sorted(by_rack))
    )
    return tuple(broker_id for each in rounds for broker_id in each if broker_id is not None)


def place_replicas(
    racks: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    start_index: int,
    first_partition: int = 0,
) -> tuple[tuple[int, ...], ...]:
    """Returns the replicas of each new partition, the preferred leader first.

    `racks` are the brokers to choose from; a broker without a rack has None. To add partitions to a
    topic, pass the same `start_index` and the present number of partitions as `first_partition`.
    """
    brokers = ring(racks)
    if not 1 <= replication_factor <= len(brokers):
        raise ValueError(
            f"{replication_factor} replicas cannot be placed on {len(brokers)} brokers"
        )
    loads = dict.fromkeys(brokers, 0)
    placed: list[tuple[int, ...]] = []
    for partition in range(first_partition, first_partition + partitions):
        leader, *others = _in_order(brokers, start_index, partition)
        chosen = [leader]
        used_racks = {racks[leader]}
        for _ in range(replication_factor - 1):
            follower = min(others, key=lambda each: (racks[each] in used_racks, loads[each]))
            others.remove(follower)
            used_racks.add(racks[follower])
            chosen.append(follower)
        for each in chosen:
            loads[each] += 1
        placed.append(tuple(chosen))
    return tuple(placed)


def _in_order(brokers: tuple[int, ...], start_index: int, partition: int) -> list[int]:
    """Returns the partition's leader, followed by all other brokers in order of preference."""
    turn, step = divmod(partition, len(brokers))
    position = (start_index + step) % len(brokers)
    others = brokers[position + 1 :] + brokers[:position]
    shift = turn % max(len(others), 1)
    return [brokers[position], *others[shift:], *others[:shift]]
