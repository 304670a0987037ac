"""The group pages: members, current and past lag, and resetting the offsets of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.client.admin import group_reset
from penstock.client.admin.groups import SHARE
from penstock.console.errors import BadRequest
from penstock.console.link import Link, Reading
from penstock.console.picture import Picture
from penstock.console.watch import Watch
from penstock.topic_partition import TopicPartition

PAGE_MAX: Final = 500
_TARGETS: Final = {kind.name.lower(): kind for kind in group_reset.Kind}


class Groups:
    def __init__(self, link: Link, watch: Watch) -> None:
        self._link = link
        self._watch = watch

    @property
    def _picture(self) -> Picture:
        return self._watch.picture

    async def listed(self, search: str, offset: int, limit: int) -> dict[str, Any]:
        if not self._picture.groups:
            await self._watch.survey_groups()
        words = search.casefold().split()
        found = [
            name
            for name in sorted(self._picture.groups)
            if all(word in name.casefold() for word in words)
        ]
        rows = []
        for name in found[offset : offset + min(limit, PAGE_MAX)]:
            group = self._picture.groups[name]
            rows.append(
                {
                    "group": name,
                    "state": group.listing.state,
                    "protocol_type": group.listing.protocol_type,
                    "members": group.members,
                    "lag": group.lag,
                    "topics": sorted(
                        {topic_partition.topic for topic_partition in group.partitions}
                    ),
                }
            )
        return {"total": len(found), "offset": offset, "groups": rows}

    async def described(self, name: str) -> dict[str, Any]:
        admin = await self._link.reading()
        info = await admin.describe_group(name)
        committed = await admin.group_offsets(name)
        assigned = [
            topic_partition for member in info.members for topic_partition in member.assignment
        ]
        topic_partitions = sorted({*committed, *assigned})
        bounds = await self._bounds(admin, topic_partitions)
        rows = []
        for topic_partition in topic_partitions:
            start, end = bounds.get(topic_partition, (None, None))
            at = committed[topic_partition].offset if topic_partition in committed else None
            owner = info.owner(topic_partition)
            # Records that retention has deleted cannot be read any more, so they are not lag.
            behind = None if at is None or end is None else max(0, end - max(at, start or 0))
            rows.append(
                {
                    "topic": topic_partition.topic,
                    "partition": topic_partition.partition,
                    "committed": at,
                    "first_offset": start,
                    "next_offset": end,
                    "lag": behind,
                    "member": None if owner is None else owner.client_id,
                    "host": None if owner is None else owner.client_host,
                }
            )
        return {
            "group": name,
            "state": info.state,
            "protocol": info.protocol,
            "coordinator": info.coordinator,
            "movable": info.state in group_reset.MOVABLE_STATES and info.protocol_type != SHARE,
            "lag": sum(row["lag"] or 0 for row in rows),
            "members": [
                {
                    "member_id": member.member_id,
                    "client_id": member.client_id,
                    "host": member.client_host,
                    "instance_id": member.instance_id,
                    "assignment": [str(topic_partition) for topic_partition in member.assignment],
                }
                for member in info.members
            ],
            "partitions": rows,
        }

    async def _bounds(
        self, admin: Reading, topic_partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Returns start and end offsets. Skips deleted topics: a group may still have offsets."""
        known = [
            topic_partition
            for topic_partition in topic_partitions
            if topic_partition.topic in self._picture.by_name
            and topic_partition.partition
            < len(self._picture.by_name[topic_partition.topic].partitions)
        ]
        if not known:
            return {}
        starts = await admin.list_offsets(dict.fromkeys(known, "earliest"))
        ends = await admin.list_offsets(dict.fromkeys(known, "latest"))
        return {
            topic_partition: (start.offset, end.offset)
            for topic_partition in known
            if (start := starts[topic_partition]) is not None
            and (end := ends[topic_partition]) is not None
        }

    # -- resetting offsets ----------------------------------------------------------------------

    async def plan_reset(
        self, name: str, topics: Sequence[str], target: str, value: int
    ) -> dict[str, Any]:
        """Returns the changes that a reset would make, without making them.

        Without `topics`, plans for all topics for which the group has committed offsets.
        """
        if target not in _TARGETS:
            raise BadRequest(f"reset to one of {', '.join(_TARGETS)}, not to {target!r}")
        admin = await self._link.reading()
        goal = group_reset.Target(_TARGETS[target], value)
        moves = await group_reset.plan(admin, name, dict.fromkeys(topics), goal)
        if not moves:
            raise BadRequest(f"group {name} has no committed offsets: name the topics to set")
        rows = [
            {
                "topic": move.topic_partition.topic,
                "partition": move.topic_partition.partition,
                "from": move.committed,
                "to": move.offset,
                "lag": move.lag,
            }
            for move in moves
        ]
        return {"group": name, "moves": rows}

    async def reset(self, name: str, offsets: Mapping[TopicPartition, int]) -> dict[str, Any]:
        """Sets exactly the offsets that the plan has shown."""
        admin = await self._link.changing(
            f"reset group {name}: "
            f"{', '.join(f'{topic_partition}={at}' for topic_partition, at in offsets.items())}"
        )
        await group_reset.refuse_members(admin, name)
        outcomes = await admin.alter_group_offsets(name, offsets)
        refused = [error for error in outcomes.values() if error is not None]
        if refused:
            raise refused[0]
        await self._watch.look_again(self._watch.survey_groups)
        return {"group": name, "moved": len(outcomes)}

    async def delete(self, name: str, typed: str) -> dict[str, Any]:
        admin = await self._link.changing(f"delete group {name}")
        if typed != name:
            raise BadRequest(f"type the group's name, {name}, to delete it and its offsets")
        await admin.delete_group(name)
        await self._watch.look_again(self._watch.survey_groups)
        return {"group": name}
