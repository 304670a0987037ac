"""Finds the current problems of a cluster, and says what to do about them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.client.admin.operations import TopicInfo

SEVERITIES: Final = ("critical", "warning", "info")
_NAMED_MAX: Final = 3
_DISK_NEARLY_FULL: Final = 0.10


@dataclass(frozen=True, slots=True)
class Problem:
    severity: str
    """"critical": data cannot be written or read; "warning": that may happen soon; or "info"."""
    title: str
    advice: str
    link: str = ""
    """The console page with more details."""


@dataclass(frozen=True, slots=True)
class DiskSpace:
    broker: int
    path: str
    total_bytes: int
    usable_bytes: int
    error: str


@dataclass(frozen=True, slots=True)
class Lagging:
    group: str
    lag: int
    members: int


def find_problems(
    *,
    unreachable: str,
    silent: Collection[int],
    missing: Collection[int],
    topics: Sequence[TopicInfo],
    least_in_sync: dict[str, int],
    disks: Sequence[DiskSpace],
    growing: Sequence[Lagging],
    moving: int,
) -> list[Problem]:
    """Returns the problems, the most urgent first."""
    if unreachable:
        advice = "start the brokers (penstock up), or correct --bootstrap"
        return [Problem("critical", f"no broker can be reached: {unreachable}", advice)]
    found: list[Problem] = []
    found += _partitions(topics, least_in_sync, missing, moving)
    found += _brokers(silent, missing)
    found += _disks(disks)
    found += [
        Problem(
            "warning" if each.members else "info",
            f"group {each.group} is falling behind: lag {each.lag:,}",
            "add members (up to one for each partition), or check why they are slow"
            if each.members
            else "it has no members: start its consumers, or delete the group",
            f"#/groups/{each.group}",
        )
        for each in growing
    ]
    return sorted(found, key=lambda each: SEVERITIES.index(each.severity))


def _partitions(
    topics: Sequence[TopicInfo],
    least_in_sync: dict[str, int],
    missing: Collection[int],
    moving: int,
) -> list[Problem]:
    offline: list[str] = []
    below: list[str] = []
    under: list[str] = []
    for topic in topics:
        least = least_in_sync.get(topic.name, 1)
        for partition in topic.partitions:
            name = f"{topic.name}-{partition.index}"
            if partition.leader < 0:
                offline.append(name)
            elif len(partition.in_sync) < min(least, len(partition.replicas)):
                below.append(name)
            elif partition.under_replicated:
                under.append(name)
    found: list[Problem] = []
    if offline:
        advice = (
            "writes and reads fail until a broker with an in-sync replica is back. If none can "
            "come back: penstock cluster elect --unclean, which loses the records that only those "
            "brokers had"
        )
        found.append(
            Problem("critical", _counted(offline, "without a leader"), advice, "#/brokers")
        )
    if below:
        advice = "writes with acks=all are refused until more replicas have caught up"
        title = _counted(below, "below min.insync.replicas")
        found.append(Problem("critical", title, advice, "#/brokers"))
    if under:
        if missing:
            advice = "start the missing brokers; their replicas then catch up by themselves"
        elif moving:
            advice = "replicas are being moved: wait until the moves are done"
        else:
            advice = "replicas are catching up; if this lasts, a broker is too slow: see its log"
        found.append(Problem("warning", _counted(under, "under-replicated"), advice, "#/brokers"))
    return found


def _brokers(silent: Collection[int], missing: Collection[int]) -> list[Problem]:
    found = [
        Problem(
            "critical",
            f"broker {each} is not running",
            f"start it; if it will not come back: penstock cluster drain {each}",
            "#/brokers",
        )
        for each in sorted(missing)
    ]
    found += [
        Problem(
            "critical",
            f"broker {each} is not responding",
            "it crashed, hangs or cannot be reached: check its process and its log",
            "#/brokers",
        )
        for each in sorted(silent)
    ]
    return found


def _disks(disks: Sequence[DiskSpace]) -> list[Problem]:
    found: list[Problem] = []
    for disk in disks:
        if disk.error:
            title = f"a log directory of broker {disk.broker} is offline: {disk.path}"
            advice = f"{disk.error}: repair the disk, then start the broker again"
            found.append(Problem("critical", title, advice, "#/brokers"))
        elif 0 <= disk.usable_bytes < disk.total_bytes * _DISK_NEARLY_FULL:
            share = 100 * disk.usable_bytes / disk.total_bytes
            title = f"the disk of broker {disk.broker} is nearly full: {share:.0f} % left"
            advice = "lower retention.ms or retention.bytes of large topics, or add space"
            found.append(Problem("warning", title, advice, "#/brokers"))
    return found


def _counted(names: Sequence[str], what: str) -> str:
    named = ", ".join(names[:_NAMED_MAX])
    more = f" and {len(names) - _NAMED_MAX:,} more" if len(names) > _NAMED_MAX else ""
    noun = "partition" if len(names) == 1 else "partitions"
    return f"{len(names):,} {noun} {what}: {named}{more}"
