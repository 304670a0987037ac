"""A model of a cluster with several brokers at one fake broker's address, with reassignments.

A reassignment advances each time it is listed: first the added replicas are in sync, then it is
complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from client.fake_broker import FakeBroker
from client.fake_model import CLUSTER_ID, Log, Model, Topic
from penstock.wire import messages
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.base import Response

TopicPartition = tuple[str, int]


@dataclass
class Spot:
    replicas: list[int]
    in_sync: list[int]
    leader: int


@dataclass
class Move:
    target: list[int]
    looks: int = 0


@dataclass
class Changed:
    """The requested changes, in order."""

    moves: list[dict[TopicPartition, list[int] | None]] = field(default_factory=list)
    elections: list[tuple[int, list[TopicPartition] | None]] = field(default_factory=list)


class ClusterModel(Model):
    def __init__(self, fake: FakeBroker, brokers: int) -> None:
        super().__init__()
        self.port = fake.model.port
        self.racks: dict[int, str | None] = dict.fromkeys(range(brokers))
        self.spots: dict[TopicPartition, Spot] = {}
        self.moves: dict[TopicPartition, Move] = {}
        self.broker_settings: dict[int, dict[str, str]] = {}
        self.stuck = False
        """If set, reassignments do not advance."""
        self.changed = Changed()
        fake.model = self

    def topic_partition(self, name: str, *replicas: list[int]) -> None:
        topic = Topic(name, len(self.topics).to_bytes(15, "big") + b"\1", [])
        self.topics[name] = topic
        for index, each in enumerate(replicas):
            topic.logs.append(Log())
            self.spots[name, index] = Spot(each, list(each), each[0])

    def replicas(self) -> dict[TopicPartition, list[int]]:
        return {topic_partition: spot.replicas for topic_partition, spot in self.spots.items()}

    def metadata(self, request: messages.MetadataRequest, version: int) -> Response:
        answer = super().metadata(request, version)
        assert isinstance(answer, messages.MetadataResponse)
        answer.brokers = [
            messages.MetadataResponse.Broker(each, "127.0.0.1", self.port) for each in self.racks
        ]
        for topic in answer.topics:
            for part in topic.partitions:
                spot = self.spots[topic.name or "", part.partition_index]
                part.leader_id = spot.leader
                part.replica_nodes, part.isr_nodes = list(spot.replicas), list(spot.in_sync)
        return answer

    def describe_cluster(self, request: Any, version: int) -> Response:
        return messages.DescribeClusterResponse(
            cluster_id=CLUSTER_ID,
            controller_id=0,
            brokers=[
                messages.DescribeClusterResponse.Broker(each, "127.0.0.1", self.port, rack)
                for each, rack in self.racks.items()
            ],
        )

    def describe_log_dirs(self, request: Any, version: int) -> Response:
        directory = messages.DescribeLogDirsResponse.LogDir(log_dir="/data")
        for name, index in self.spots:
            part = messages.DescribeLogDirsResponse.Partition(index, 1024)
            directory.topics.append(messages.DescribeLogDirsResponse.Topic(name, [part]))
        return messages.DescribeLogDirsResponse(results=[directory])

    def alter_partition_reassignments(
        self, request: messages.AlterPartitionReassignmentsRequest, version: int
    ) -> Response:
        answer = messages.AlterPartitionReassignmentsResponse(error_message=None)
        asked: dict[TopicPartition, list[int] | None] = {}
        for topic in request.topics:
            results = []
            for part in topic.partitions:
                topic_partition = topic.name, part.partition_index
                asked[topic_partition] = part.replicas
                code = self._alter(topic_partition, part.replicas)
                words = None if code == ErrorCode.NONE else "refused, said the fake"
                results.append(
                    messages.AlterPartitionReassignmentsResponse.Partition(
                        part.partition_index, code, words
                    )
                )
            answer.responses.append(
                messages.AlterPartitionReassignmentsResponse.Topic(topic.name, results)
            )
        self.changed.moves.append(asked)
        return answer

    def _alter(self, topic_partition: TopicPartition, target: list[int] | None) -> ErrorCode:
        spot = self.spots.get(topic_partition)
        if spot is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if target is None:
            if self.moves.pop(topic_partition, None) is None:
                return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
            return ErrorCode.NONE
        if not {*target} <= {*self.racks}:
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT
        if {*target} == {*spot.replicas}:
            spot.replicas = target
        else:
            self.moves[topic_partition] = Move(target)
        return ErrorCode.NONE

    def list_partition_reassignments(
        self, request: messages.ListPartitionReassignmentsRequest, version: int
    ) -> Response:
        answer = messages.ListPartitionReassignmentsResponse(error_message=None)
        for topic_partition, move in [*self.moves.items()]:
            if not self.stuck:
                self._advance(topic_partition, move)
            if topic_partition not in self.moves:
                continue
            spot = self.spots[topic_partition]
            part = messages.ListPartitionReassignmentsResponse.Partition(
                topic_partition[1],
                move.target + [each for each in spot.replicas if each not in move.target],
                [each for each in move.target if each not in spot.replicas],
                [each for each in spot.replicas if each not in move.target],
            )
            answer.topics.append(
                messages.ListPartitionReassignmentsResponse.Topic(topic_partition[0], [part])
            )
        return answer

    def _advance(self, topic_partition: TopicPartition, move: Move) -> None:
        move.looks += 1
        spot = self.spots[topic_partition]
        if move.looks == 2:
            spot.in_sync += [each for each in move.target if each not in spot.in_sync]
        elif move.looks > 2:
            del self.moves[topic_partition]
            spot.replicas = spot.in_sync = move.target
            if spot.leader not in move.target:
                spot.leader = move.target[0]

    def elect_leaders(self, request: messages.ElectLeadersRequest, version: int) -> Response:
        asked = None
        if request.topic_partitions is not None:
            asked = [(t.topic, index) for t in request.topic_partitions for index in t.partitions]
        self.changed.elections.append((request.election_type, asked))
        answer = messages.ElectLeadersResponse()
        for name, index in self.spots if asked is None else asked:
            code = self._elect(self.spots[name, index], unclean=request.election_type == 1)
            if asked is None and code == ErrorCode.ELECTION_NOT_NEEDED:
                continue
            words = None if code == ErrorCode.NONE else "refused, said the fake"
            part = messages.ElectLeadersResponse.Partition(index, code, words)
            answer.replica_election_results.append(
                messages.ElectLeadersResponse.Topic(name, [part])
            )
        return answer

    def _elect(self, spot: Spot, *, unclean: bool) -> ErrorCode:
        if unclean and spot.leader < 0:
            spot.leader = next(each for each in spot.replicas if each in self.racks)
            spot.in_sync = [spot.leader]
            return ErrorCode.NONE
        if unclean or spot.leader == spot.replicas[0]:
            return ErrorCode.ELECTION_NOT_NEEDED
        if spot.replicas[0] not in spot.in_sync:
            return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        spot.leader = spot.replicas[0]
        return ErrorCode.NONE

    def unregister_broker(
        self, request: messages.UnregisterBrokerRequest, version: int
    ) -> Response:
        if request.broker_id in self.racks:
            return messages.UnregisterBrokerResponse(0, ErrorCode.INVALID_REQUEST, "It is running.")
        return messages.UnregisterBrokerResponse(0, ErrorCode.BROKER_ID_NOT_REGISTERED, "Nothing.")

    def describe_configs(self, request: messages.DescribeConfigsRequest, version: int) -> Response:
        (resource,) = request.resources
        if resource.resource_type != 4:
            return super().describe_configs(request, version)
        values = self.broker_settings.get(int(resource.resource_name), {})
        configs = [
            messages.DescribeConfigsResponse.Config(name, value, config_source=2)
            for name, value in values.items()
        ]
        found = messages.DescribeConfigsResponse.Resource(
            resource_type=4, resource_name=resource.resource_name, configs=configs
        )
        return messages.DescribeConfigsResponse(results=[found])

    def incremental_alter_configs(
        self, request: messages.IncrementalAlterConfigsRequest, version: int
    ) -> Response:
        (resource,) = request.resources
        if resource.resource_type != 4:
            return super().incremental_alter_configs(request, version)
        values = self.broker_settings.setdefault(int(resource.resource_name), {})
        for change in resource.configs:
            if change.config_operation == 0:
                values[change.name] = change.value or ""
            else:
                values.pop(change.name, None)
        answer = messages.IncrementalAlterConfigsResponse.Resource(
            resource_type=4, resource_name=resource.resource_name
        )
        return messages.IncrementalAlterConfigsResponse(responses=[answer])
