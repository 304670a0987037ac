"""The state of the fake broker: topics with their batches, groups with their offsets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from penstock.records.batch import read_header, stamp
from penstock.records.record import read_records
from penstock.wire import messages
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.base import Response

CLUSTER_ID = "fake-cluster"
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@dataclass
class Log:
    start: int = 0
    batches: list[bytearray] = field(default_factory=list)

    @property
    def end(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.batches else self.start

    def append(self, records: Any) -> int:
        batch = bytearray(records)
        base = self.end
        stamp(batch, 0, base, 0)
        self.batches.append(batch)
        return base

    def read(self, offset: int) -> bytes:
        wanted = [batch for batch in self.batches if read_header(batch).last_offset >= offset]
        return b"".join(wanted)

    def records(self) -> list[Any]:
        return [record for batch in self.batches for record in read_records(batch)]


@dataclass
class Topic:
    name: str
    topic_id: bytes
    logs: list[Log]
    configs: dict[str, str] = field(default_factory=dict)
    internal: bool = False
    leader: int = 0
    replicas: tuple[int, ...] = (0,)
    in_sync: tuple[int, ...] = (0,)


@dataclass
class Member:
    member_id: str
    client_id: str
    assignment: bytes = b""


@dataclass
class Group:
    state: str = "Empty"
    protocol_type: str = "consumer"
    protocol: str = ""
    members: list[Member] = field(default_factory=list)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)


class Model:
    def __init__(self) -> None:
        self.port = 0
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.auto_create = True
        self.produced = asyncio.Event()
        self._next_producer_id = 1000

    def add_topic(self, name: str, partitions: int = 1, **configs: str) -> Topic:
        topic_id = len(self.topics).to_bytes(15, "big") + b"\1"
        topic = Topic(name, topic_id, [Log() for _ in range(partitions)], dict(configs))
        self.topics[name] = topic
        return topic

    def answer(self, key: ApiKey, version: int, request: Any) -> Response:
        handler = getattr(self, key.name.lower())
        response: Response = handler(request, version)
        return response

    def log(self, topic: str, partition: int) -> Log | None:
        found = self.topics.get(topic)
        return found.logs[partition] if found and 0 <= partition < len(found.logs) else None

    # -- the cluster ----------------------------------------------------------------------------

    def metadata(self, request: messages.MetadataRequest, version: int) -> Response:
        answer = messages.MetadataResponse(
            brokers=[messages.MetadataResponse.Broker(0, "127.0.0.1", self.port)],
            cluster_id=CLUSTER_ID,
            controller_id=0,
        )
        names = self.topics if request.topics is None else [t.name or "" for t in request.topics]
        for name in names:
            if name not in self.topics and request.allow_auto_topic_creation and self.auto_create:
                self.add_topic(name)
            topic = self.topics.get(name)
            if topic is None:
                answer.topics.append(messages.MetadataResponse.Topic(UNKNOWN, name))
                continue
            partitions = [
                messages.MetadataResponse.Partition(
                    0, index, topic.leader, 3, list(topic.replicas), list(topic.in_sync)
                )
                for index in range(len(topic.logs))
            ]
            answer.topics.append(
                messages.MetadataResponse.Topic(0, name, topic.topic_id, topic.internal, partitions)
            )
        return answer

    def describe_cluster(self, request: Any, version: int) -> Response:
        return messages.DescribeClusterResponse(
            cluster_id=CLUSTER_ID,
            controller_id=0,
            brokers=[messages.DescribeClusterResponse.Broker(0, "127.0.0.1", self.port)],
        )

    def list_partition_reassignments(self, request: Any, version: int) -> Response:
        return messages.ListPartitionReassignmentsResponse(error_message=None)

    def find_coordinator(self, request: messages.FindCoordinatorRequest, version: int) -> Response:
        if version < 4:
            return messages.FindCoordinatorResponse(node_id=0, host="127.0.0.1", port=self.port)
        return messages.FindCoordinatorResponse(
            coordinators=[
                messages.FindCoordinatorResponse.Coordinator(key, 0, "127.0.0.1", self.port)
                for key in request.coordinator_keys
            ]
        )

    # -- topics ---------------------------------------------------------------------------------

    def create_topics(self, request: messages.CreateTopicsRequest, version: int) -> Response:
        answer = messages.CreateTopicsResponse()
        for wanted in request.topics:
            if wanted.name in self.topics:
                result = messages.CreateTopicsResponse.Topic(
                    wanted.name,
                    error_code=ErrorCode.TOPIC_ALREADY_EXISTS,
                    error_message=f"topic {wanted.name} exists already",
                )
            else:
                configs = {config.name: config.value or "" for config in wanted.configs}
                topic = self.add_topic(wanted.name, max(wanted.num_partitions, 1), **configs)
                result = messages.CreateTopicsResponse.Topic(
                    wanted.name,
                    topic.topic_id,
                    num_partitions=len(topic.logs),
                    replication_factor=1,
                )
            answer.topics.append(result)
        return answer

    def delete_topics(self, request: messages.DeleteTopicsRequest, version: int) -> Response:
        names = [t.name or "" for t in request.topics] if version >= 6 else request.topic_names
        return messages.DeleteTopicsResponse(
            responses=[
                messages.DeleteTopicsResponse.Topic(
                    name, error_code=0 if self.topics.pop(name, None) else UNKNOWN
                )
                for name in names
            ]
        )

    def create_partitions(
        self, request: messages.CreatePartitionsRequest, version: int
    ) -> Response:
        answer = messages.CreatePartitionsResponse()
        for wanted in request.topics:
            topic = self.topics.get(wanted.name)
            code = ErrorCode.NONE
            if topic is None:
                code = UNKNOWN
            elif wanted.count <= len(topic.logs):
                code = ErrorCode.INVALID_PARTITIONS
            else:
                topic.logs += [Log() for _ in range(wanted.count - len(topic.logs))]
            answer.results.append(messages.CreatePartitionsResponse.Topic(wanted.name, code))
        return answer

    def describe_configs(self, request: messages.DescribeConfigsRequest, version: int) -> Response:
        answer = messages.DescribeConfigsResponse()
        for resource in request.resources:
            topic = self.topics.get(resource.resource_name)
            result = messages.DescribeConfigsResponse.Resource(
                resource_type=resource.resource_type, resource_name=resource.resource_name
            )
            if topic is None:
                result.error_code = UNKNOWN
            else:
                shown = {"retention.ms": ("604800000", 5)} | {
                    name: (value, 1) for name, value in topic.configs.items()
                }
                result.configs = [
                    messages.DescribeConfigsResponse.Config(name, value, config_source=source)
                    for name, (value, source) in shown.items()
                ]
            answer.results.append(result)
        return answer

    def incremental_alter_configs(
        self, request: messages.IncrementalAlterConfigsRequest, version: int
    ) -> Response:
        answer = messages.IncrementalAlterConfigsResponse()
        for resource in request.resources:
            topic = self.topics.get(resource.resource_name)
            result = messages.IncrementalAlterConfigsResponse.Resource(
                resource_type=resource.resource_type, resource_name=resource.resource_name
            )
            if topic is None:
                result.error_code = UNKNOWN
            else:
                for change in resource.configs:
                    if change.config_operation == 0:
                        topic.configs[change.name] = change.value or ""
                    else:
                        topic.configs.pop(change.name, None)
            answer.responses.append(result)
        return answer

    # -- records --------------------------------------------------------------------------------

    def init_producer_id(self, request: Any, version: int) -> Response:
        self._next_producer_id += 1
        return messages.InitProducerIdResponse(producer_id=self._next_producer_id)

    def produce(self, request: messages.ProduceRequest, version: int) -> Response:
        answer = messages.ProduceResponse()
        for topic in request.topic_data:
            results = []
            for part in topic.partition_data:
                log = self.log(topic.name, part.index)
                if log is None:
                    results.append(messages.ProduceResponse.Partition(part.index, UNKNOWN))
                    continue
                base = self._append(log, part.records)
                results.append(messages.ProduceResponse.Partition(part.index, 0, base))
            answer.responses.append(
                messages.ProduceResponse.Topic(topic.name, partition_responses=results)
            )
        return answer

    def _append(self, log: Log, records: Any) -> int:
        header = read_header(records)
        for batch in log.batches:
            known = read_header(batch)
            same = (known.producer_id, known.base_sequence, known.record_count)
            if known.has_producer and same == (
                header.producer_id,
                header.base_sequence,
                header.record_count,
            ):
                return known.base_offset
        return log.append(records)

    async def fetch(self, request: messages.FetchRequest) -> Response:
        """Long polls in small steps, because a test's producer may run on the same loop."""
        for _ in range(max(1, request.max_wait_ms // 10)):
            answer = self._fetch(request)
            if any(
                part.records or part.error_code for t in answer.responses for part in t.partitions
            ):
                break
            await asyncio.sleep(0.01)
        return answer

    def _fetch(self, request: messages.FetchRequest) -> messages.FetchResponse:
        answer = messages.FetchResponse()
        for topic in request.topics:
            results = []
            for part in topic.partitions:
                log = self.log(topic.topic, part.partition)
                result = messages.FetchResponse.Partition(part.partition)
                if log is None:
                    result.error_code = UNKNOWN
                elif not log.start <= part.fetch_offset <= log.end:
                    result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                else:
                    result.high_watermark = log.end
                    result.records = log.read(part.fetch_offset)
                results.append(result)
            answer.responses.append(messages.FetchResponse.Topic(topic.topic, partitions=results))
        return answer

    def list_offsets(self, request: messages.ListOffsetsRequest, version: int) -> Response:
        answer = messages.ListOffsetsResponse()
        for topic in request.topics:
            results = []
            for part in topic.partitions:
                log = self.log(topic.name, part.partition_index)
                result = messages.ListOffsetsResponse.Partition(part.partition_index)
                if log is None:
                    result.error_code = UNKNOWN
                elif part.timestamp == -1:
                    result.offset = log.end
                elif part.timestamp == -2:
                    result.offset = log.start
                else:
                    for record in log.records():
                        if record.timestamp >= part.timestamp:
                            result.offset, result.timestamp = record.offset, record.timestamp
                            break
                results.append(result)
            answer.topics.append(messages.ListOffsetsResponse.Topic(topic.name, results))
        return answer

    def delete_records(self, request: messages.DeleteRecordsRequest, version: int) -> Response:
        answer = messages.DeleteRecordsResponse()
        for topic in request.topics:
            results = []
            for part in topic.partitions:
                log = self.log(topic.name, part.partition_index)
                assert log is not None
                log.start = log.end if part.offset == -1 else part.offset
                results.append(
                    messages.DeleteRecordsResponse.Partition(part.partition_index, log.start)
                )
            answer.topics.append(messages.DeleteRecordsResponse.Topic(topic.name, results))
        return answer

    # -- groups ---------------------------------------------------------------------------------

    def list_groups(self, request: Any, version: int) -> Response:
        return messages.ListGroupsResponse(
            groups=[
                messages.ListGroupsResponse.Group(name, group.protocol_type, group.state, "classic")
                for name, group in self.groups.items()
            ]
        )

    def describe_groups(self, request: messages.DescribeGroupsRequest, version: int) -> Response:
        answer = messages.DescribeGroupsResponse()
        for name in request.groups:
            group = self.groups.get(name)
            if group is None:
                missing = messages.DescribeGroupsResponse.Group(group_id=name, group_state="Dead")
                if version >= 6:
                    missing.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                answer.groups.append(missing)
                continue
            answer.groups.append(
                messages.DescribeGroupsResponse.Group(
                    group_id=name,
                    group_state=group.state,
                    protocol_type=group.protocol_type,
                    protocol_data=group.protocol,
                    members=[
                        messages.DescribeGroupsResponse.Member(
                            member.member_id,
                            None,
                            member.client_id,
                            "/127.0.0.1",
                            b"",
                            member.assignment,
                        )
                        for member in group.members
                    ],
                )
            )
        return answer

    def delete_groups(self, request: messages.DeleteGroupsRequest, version: int) -> Response:
        answer = messages.DeleteGroupsResponse()
        for name in request.groups_names:
            group = self.groups.get(name)
            code = ErrorCode.GROUP_ID_NOT_FOUND if group is None else ErrorCode.NONE
            if group is not None and group.members:
                code = ErrorCode.NON_EMPTY_GROUP
            elif group is not None:
                del self.groups[name]
            answer.results.append(messages.DeleteGroupsResponse.Group(name, code))
        return answer

    def offset_fetch(self, request: messages.OffsetFetchRequest, version: int) -> Response:
        name = request.groups[0].group_id if version >= 8 else request.group_id
        offsets = self.groups[name].offsets if name in self.groups else {}
        if version >= 8:
            topics = [
                messages.OffsetFetchResponse.GroupTopic(
                    topic,
                    partitions=[
                        messages.OffsetFetchResponse.GroupPartition(partition, offset)
                        for (owner, partition), offset in offsets.items()
                        if owner == topic
                    ],
                )
                for topic in {topic for topic, _ in offsets}
            ]
            group = messages.OffsetFetchResponse.Group(name, topics)
            return messages.OffsetFetchResponse(groups=[group])
        return messages.OffsetFetchResponse(
            topics=[
                messages.OffsetFetchResponse.Topic(
                    topic, [messages.OffsetFetchResponse.Partition(partition, offset)]
                )
                for (topic, partition), offset in offsets.items()
            ]
        )

    def offset_commit(self, request: messages.OffsetCommitRequest, version: int) -> Response:
        group = self.groups.setdefault(request.group_id, Group())
        answer = messages.OffsetCommitResponse()
        for topic in request.topics:
            results = []
            for part in topic.partitions:
                group.offsets[topic.name, part.partition_index] = part.committed_offset
                results.append(messages.OffsetCommitResponse.Partition(part.partition_index))
            answer.topics.append(
                messages.OffsetCommitResponse.Topic(topic.name, partitions=results)
            )
        return answer

    def offset_delete(self, request: messages.OffsetDeleteRequest, version: int) -> Response:
        group = self.groups.get(request.group_id)
        if group is None:
            return messages.OffsetDeleteResponse(ErrorCode.GROUP_ID_NOT_FOUND)
        answer = messages.OffsetDeleteResponse()
        for topic in request.topics:
            results = []
            for part in topic.partitions:
                group.offsets.pop((topic.name, part.partition_index), None)
                results.append(messages.OffsetDeleteResponse.Partition(part.partition_index))
            answer.topics.append(messages.OffsetDeleteResponse.Topic(topic.name, results))
        return answer
