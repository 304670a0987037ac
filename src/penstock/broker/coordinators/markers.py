"""Delivers transaction markers from the coordinator to the partitions of the transaction.

`MarkerWriter` writes markers to partitions that this broker leads, for its own coordinator and for
those of other brokers (WriteTxnMarkers). `MarkerSender` finds the leaders. Markers for another
broker go over one link, and those that are due together share a request. Every partition gets
exactly one answer, even if it has no leader. Retries are up to the coordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.cooperative_yield import Steps, at_once, in_slices, slices_of
from penstock.broker.coordinators.groups import GroupCoordinator
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.partitions.own_txn_appends import append_marker
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.peers.connection import Peer, PeerLost
from penstock.broker.peers.connector import PeerConnector
from penstock.broker.peers.link import PeerLink, code_from
from penstock.metadata.model import OFFSETS_TOPIC
from penstock.ports import Env
from penstock.topic_partition import TopicPartition
from penstock.txns.effects import Marker
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

Tell = Callable[[Mapping[TopicPartition, ErrorCode]], None]
"""Called with each group of answers, until every partition has one."""

_log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 30.0
_VERSION: Final = 2


class MarkerWriter:
    def __init__(self, env: Env, replicas: Replicas, groups: GroupCoordinator) -> None:
        self._env = env
        self._replicas = replicas
        self._groups = groups

    def write(
        self, marker: Marker, where: TopicPartition, tell: Callable[[ErrorCode], None]
    ) -> None:
        """Writes the marker to one partition. `tell` is called once: with NONE when it is
        committed, otherwise with the error."""
        try:
            if where.topic == OFFSETS_TOPIC:
                self._replicas.require(*where).require_leader()
                self._groups.require_at(where.partition).write_marker(marker, tell)
            else:
                self._write(marker, where, tell)
        except EXPECTED_ERRORS as error:
            tell(code_of(error))
        except Exception:  # noqa: BLE001 - logged; the other partitions get their markers
            _log.exception("cannot write a transaction marker to %s", where)
            tell(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _write(
        self, marker: Marker, where: TopicPartition, tell: Callable[[ErrorCode], None]
    ) -> None:
        hosted = self._replicas.require(*where)
        hosted.require_insync()
        written = append_marker(hosted, marker, self._env.clock.wall_ms())

        def on_outcome(code: ErrorCode | None) -> None:
            # With this code the marker is committed, in spite of too few in-sync replicas.
            if code is None or code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                code = ErrorCode.NONE
            tell(code)

        if hosted.when_committed(written.end_offset, on_outcome):
            tell(ErrorCode.NONE)


class _Item(NamedTuple):
    marker: Marker
    partitions: tuple[TopicPartition, ...]
    tell: Tell


class MarkerSender:
    def __init__(
        self,
        env: Env,
        broker_id: int,
        cluster: ClusterView,
        writer: MarkerWriter,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        connector: PeerConnector,
    ) -> None:
        self._env = env
        self._broker_id = broker_id
        self._cluster = cluster
        self._writer = writer
        self._spawn = spawn
        self._connector = connector
        self._links: dict[int, PeerLink[_Item]] = {}

    def send(self, marker: Marker, partitions: Collection[TopicPartition], tell: Tell) -> None:
        """Has the leaders of these partitions write the marker."""
        steps = self._send(marker, partitions, tell)
        if len(partitions) <= self._env.slicing.elements:
            at_once(steps)
        else:
            self._spawn(in_slices(steps, slices_of(self._env)))

    def _send(
        self, marker: Marker, partitions: Iterable[TopicPartition], tell: Tell
    ) -> Steps[None]:
        by_leader: dict[int, list[TopicPartition]] = {}
        failed: dict[TopicPartition, ErrorCode] = {}
        for where in partitions:
            partition = self._cluster.image.partition(*where)
            if partition is None:
                failed[where] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif partition.leader < 0:
                failed[where] = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                by_leader.setdefault(partition.leader, []).append(where)
            yield
        if failed:
            tell(failed)
        for leader, led in by_leader.items():
            if leader != self._broker_id:
                self._link(leader).put(_Item(marker, tuple(led), tell))
        for where in by_leader.get(self._broker_id, ()):
            self._writer.write(marker, where, _teller(where, tell))
            yield

    def _link(self, broker_id: int) -> PeerLink[_Item]:
        link = self._links.get(broker_id)
        if link is None:
            link = self._links[broker_id] = PeerLink(
                self._env,
                self._cluster,
                broker_id,
                _exchange,
                _lose,
                self._spawn,
                client_id="transactions",
                connector=self._connector,
            )
        return link


def _teller(where: TopicPartition, tell: Tell) -> Callable[[ErrorCode], None]:
    return lambda code: tell({where: code})


async def _exchange(peer: Peer, items: list[_Item]) -> None:
    request = WriteTxnMarkersRequest([_wire_marker(item) for item in items])
    response = await peer.ask(request, _VERSION, WriteTxnMarkersResponse, ANSWER_TIMEOUT_S)
    asked = [item.marker.producer_id for item in items]
    if [marker.producer_id for marker in response.markers] != asked:
        peer.close("its response is for other transaction markers than the request")
        raise PeerLost(
            f"the response of {peer.name} is for other transaction markers than the request"
        )
    for item, answered in zip(items, response.markers, strict=True):
        codes = {
            TopicPartition(topic.name, partition.partition_index): code_from(partition.error_code)
            for topic in answered.topics
            for partition in topic.partitions
        }
        if ErrorCode.CLUSTER_AUTHORIZATION_FAILED in codes.values():
            peer.tell_refused()
        item.tell(
            {where: codes.get(where, ErrorCode.UNKNOWN_SERVER_ERROR) for where in item.partitions}
        )


def _lose(items: list[_Item]) -> None:
    for item in items:
        item.tell(dict.fromkeys(item.partitions, ErrorCode.NETWORK_EXCEPTION))


def _wire_marker(item: _Item) -> WriteTxnMarkersRequest.Marker:
    marker = item.marker
    return WriteTxnMarkersRequest.Marker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.committed,
        topics=[
            WriteTxnMarkersRequest.Topic(topic, [where.partition for where in those])
            for topic, those in groupby(sorted(item.partitions), key=lambda where: where.topic)
        ],
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )
