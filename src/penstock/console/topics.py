"""The topic pages: lists from the snapshot, details of one topic from the cluster, and changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.client.admin.operations import BROKER_DEFAULT, TopicInfo
from penstock.console.errors import BadRequest
from penstock.console.link import Link
from penstock.console.picture import Picture
from penstock.console.watch import Watch
from penstock.topic_partition import TopicPartition

PAGE_MAX: Final = 500
_SORTS: Final = ("name", "partitions", "size", "rate")


class Topics:
    def __init__(self, link: Link, watch: Watch) -> None:
        self._link = link
        self._watch = watch

    @property
    def _picture(self) -> Picture:
        return self._watch.picture

    # -- reading --------------------------------------------------------------------------------

    async def listed(
        self, search: str, sort: str, descending: bool, internal: bool, offset: int, limit: int
    ) -> dict[str, Any]:
        """Returns one page of the list: the browser gets only the topics that it shows."""
        if sort not in _SORTS:
            raise BadRequest(f"sort by one of {', '.join(_SORTS)}, not by {sort!r}")
        if not self._picture.surveyed:
            await self._watch.survey_topics()
        words = search.casefold().split()
        found = [
            topic
            for topic in self._picture.topics
            if (internal or not topic.internal)
            and all(word in topic.name.casefold() for word in words)
        ]
        if sort != "name" or descending:
            found.sort(key=lambda topic: self._rank(topic, sort), reverse=descending)
        page = found[offset : offset + min(limit, PAGE_MAX)]
        return {"total": len(found), "offset": offset, "topics": [self._row(each) for each in page]}

    def _rank(self, topic: TopicInfo, sort: str) -> Any:
        match sort:
            case "partitions":
                return len(topic.partitions)
            case "size":
                return self._picture.topic_bytes[topic.name]
            case "rate":
                return self._picture.topic_rates.get(topic.name, 0.0)
        return topic.name

    def _row(self, topic: TopicInfo) -> dict[str, Any]:
        return {
            "name": topic.name,
            "internal": topic.internal,
            "partitions": len(topic.partitions),
            "replication_factor": topic.replication_factor,
            "under_replicated": sum(each.under_replicated for each in topic.partitions),
            "offline": sum(each.leader < 0 for each in topic.partitions),
            "size_bytes": self._picture.topic_bytes[topic.name],
            "records_per_s": self._picture.topic_rates.get(topic.name, 0.0),
        }

    async def described(self, name: str) -> dict[str, Any]:
        admin = await self._link.reading()
        topic = await admin.describe_topic(name)
        led = [TopicPartition(name, part.index) for part in topic.partitions if part.leader >= 0]
        led = [
            topic_partition
            for topic_partition in led
            if topic.partitions[topic_partition.partition].leader not in self._picture.silent
        ]
        starts = await admin.list_offsets(dict.fromkeys(led, "earliest")) if led else {}
        ends = await admin.list_offsets(dict.fromkeys(led, "latest")) if led else {}
        sizes = {
            (directory.broker, topic_partition.partition): replica.size_bytes
            for directory in self._picture.log_dirs
            for topic_partition, replica in directory.replicas.items()
            if topic_partition.topic == name
        }
        rows = []
        for part in topic.partitions:
            topic_partition = TopicPartition(name, part.index)
            start, end = starts.get(topic_partition), ends.get(topic_partition)
            rows.append(
                {
                    "partition": part.index,
                    "leader": part.leader,
                    "epoch": part.leader_epoch,
                    "replicas": list(part.replicas),
                    "in_sync": list(part.in_sync),
                    "first_offset": None if start is None else start.offset,
                    "next_offset": None if end is None else end.offset,
                    "size_bytes": max(
                        (sizes.get((each, part.index), 0) for each in part.replicas), default=0
                    ),
                }
            )
        return {
            **self._row(topic),
            "topic_id": topic.topic_id,
            "partition_rows": rows,
            "groups": sorted(
                group
                for group, lag in self._picture.groups.items()
                if any(topic_partition.topic == name for topic_partition in lag.partitions)
            ),
        }

    async def configs(self, name: str) -> dict[str, Any]:
        found = await (await self._link.reading()).describe_configs(topic=name)
        return {
            "configs": [
                {
                    "name": entry.name,
                    "value": None if entry.sensitive else entry.value,
                    "source": entry.source.name.lower(),
                    "is_default": "topic" not in entry.source.name.lower(),
                    "read_only": entry.read_only,
                    "documentation": entry.documentation or "",
                }
                for entry in found.values()
            ]
        }

    # -- changing -------------------------------------------------------------------------------

    async def create(
        self, name: str, partitions: int | None, replicas: int | None, configs: Mapping[str, str]
    ) -> dict[str, Any]:
        admin = await self._link.changing(f"create topic {name}")
        created = await admin.create_topic(
            name,
            BROKER_DEFAULT if partitions is None else partitions,
            BROKER_DEFAULT if replicas is None else replicas,
            configs,
        )
        await self._watch.look_again(self._watch.survey_topics)
        return {"name": created.name, "partitions": created.partitions}

    async def configure(
        self, name: str, set_values: Mapping[str, str], delete: Sequence[str]
    ) -> dict[str, Any]:
        changes = ", ".join([*(f"{key}={value}" for key, value in set_values.items()), *delete])
        admin = await self._link.changing(f"configure topic {name}: {changes}")
        await admin.alter_configs(topic=name, set_values=set_values, delete=delete)
        return await self.configs(name)

    async def grow(self, name: str, total: int) -> dict[str, Any]:
        admin = await self._link.changing(f"grow topic {name} to {total} partitions")
        await admin.create_partitions(name, total)
        await self._watch.look_again(self._watch.survey_topics)
        return {"name": name, "partitions": total}

    async def delete(self, name: str, typed: str) -> dict[str, Any]:
        admin = await self._link.changing(f"delete topic {name}")
        if typed != name:
            raise BadRequest(f"type the topic's name, {name}, to delete it and all its records")
        await admin.delete_topic(name)
        await self._watch.look_again(self._watch.survey_topics)
        return {"name": name}
