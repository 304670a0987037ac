"""Looks in the background for damaged records, before a client needs them.

The scrubber reads one log after another from the disk, a piece at a time, at `scrub_bytes_per_s` in
total. It checks the CRC of each batch. A follower also compares its committed batches with those of
its leader: offsets, leader epochs and CRCs, fetched from the leader as a consumer would. This finds
a replica that differs although all its CRCs are right. Compacted logs are not compared, because
each replica compacts at its own time.

A log in which a read has met bad bytes is checked at once, whatever `scrub_bytes_per_s` is. Damage
is quarantined, and `replica_repair` repairs it. If the leader sends bad bytes, they prove nothing
about this replica. The leader's own scrubber will find them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.peers.connection import Peer, PeerLost
from penstock.broker.peers.connector import PeerConnector
from penstock.broker.replication.replica_requests import FETCH_VERSION
from penstock.metadata.model import BrokerInfo
from penstock.partition.follower import Follower
from penstock.ports import Env
from penstock.records.batch import CorruptBatch, iter_batches
from penstock.storage.damage import Damage
from penstock.storage.errors import StorageError
from penstock.storage.scrub import Digest, ScrubCursor, ScrubPiece
from penstock.wire.messages import FetchRequest, FetchResponse

PIECE_BYTES_MAX: Final = 1 << 20
PIECE_BYTES_LEAST: Final = 64 << 10
"""The least size that a piece counts for: reading many small logs is not free."""
LOOK_S: Final = 1.0
"""How often to look for logs in which a read has met bad bytes."""
SUSPECT_BYTES_PER_S: Final = 64 << 20
REST_S: Final = 60.0
"""The pause between two rounds over all logs."""
TIMEOUT_S: Final = 10.0
_RESPONSE_SLACK_BYTES: Final = 128 << 20
_log = logging.getLogger(__name__)


class Scrubber:
    def __init__(
        self,
        env: Env,
        broker_id: int,
        cluster: ClusterView,
        replicas: Replicas,
        bytes_per_s: Callable[[], int],
        connector: PeerConnector,
        rest_s: float = REST_S,
    ) -> None:
        self._env = env
        self._broker_id = broker_id
        self._cluster = cluster
        self._replicas = replicas
        self._bytes_per_s = bytes_per_s
        self._connector = connector
        self._rest_s = rest_s
        self._peers: dict[int, tuple[BrokerInfo, Peer]] = {}
        self.checked_bytes = 0
        """Bytes that were read since the start."""
        self.compared_batches = 0
        """Batches that were found equal to the leader's since the start."""

    async def run(self) -> None:
        """Scrubs until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._go_round())
                tasks.create_task(self._look_at_suspects())
        finally:
            for _, peer in self._peers.values():
                peer.close()
            self._peers.clear()

    async def _go_round(self) -> None:
        while True:
            await self._env.clock.sleep(self._rest_s)
            for hosted in self._replicas:
                if self._bytes_per_s() > 0:
                    await self._scrub(hosted, self._bytes_per_s)

    async def _look_at_suspects(self) -> None:
        while True:
            await self._env.clock.sleep(LOOK_S)
            for hosted in self._replicas:
                if hosted.log.suspect:
                    hosted.log.suspect = False
                    await self._scrub(hosted, lambda: SUSPECT_BYTES_PER_S)

    async def _scrub(self, hosted: HostedPartition, bytes_per_s: Callable[[], int]) -> None:
        cursor = ScrubCursor(hosted.log)
        while (rate := bytes_per_s()) > 0:
            piece = cursor.next_piece(max(1, min(rate, PIECE_BYTES_MAX)))
            if piece is None or self._replicas.get(hosted.topic, hosted.index) is not hosted:
                break
            try:
                await self._env.executor.run(piece.run)
                bad = piece.damage(hosted.log) or await self._compare(hosted, piece)
                if bad is not None:
                    await self._quarantine(hosted, piece, bad)
            except StorageError as error:
                _log.warning("%s-%d: %s", hosted.topic, hosted.index, error)
                break
            size = piece.position - piece.start
            self.checked_bytes += size
            await self._env.clock.sleep(max(size, PIECE_BYTES_LEAST) / rate)
        # Gives way after empty logs, too: there may be many.
        await asyncio.sleep(0)

    async def _quarantine(self, hosted: HostedPartition, piece: ScrubPiece, bad: Damage) -> None:
        log = hosted.log
        async with self._replicas.flusher.exclusive(log):
            found = piece.damage(log, bad)
            if found is None:
                return
            log.quarantine(found)
        _log.error(
            "%s-%d: offsets [%d, %d) are damaged and quarantined: %s",
            hosted.topic,
            hosted.index,
            bad.start_offset,
            bad.end_offset,
            bad.reason,
        )

    # Comparing with the leader

    async def _compare(self, hosted: HostedPartition, piece: ScrubPiece) -> Damage | None:
        """Returns the first batch that differs from the leader's, as damage."""
        follower = hosted.follower
        start, committed = hosted.log.log_start_offset, hosted.high_watermark
        ours = [
            each
            for each in piece.digests
            if each.base_offset >= start and each.next_offset <= committed
        ]
        if follower is None or not ours or hosted.settings.compact:
            return None
        theirs = await self._ask(hosted, follower, ours)
        if theirs is None or hosted.follower is not follower:
            return None
        for each in ours:
            if each.base_offset >= theirs.end_offset:
                break
            found = theirs.batches.get(each.base_offset)
            if found != (each.next_offset, each.leader_epoch, each.crc):
                return Damage(
                    piece.segment.base_offset,
                    each.position,
                    each.end_position,
                    each.base_offset,
                    each.next_offset,
                    f"the leader, broker {follower.leader}, has a different batch there",
                )
            self.compared_batches += 1
        return None

    async def _ask(
        self, hosted: HostedPartition, follower: Follower, ours: list[Digest]
    ) -> _Theirs | None:
        size = sum(each.end_position - each.position for each in ours)
        part = FetchRequest.Partition(
            hosted.index, follower.epoch, ours[0].base_offset, partition_max_bytes=size
        )
        request = FetchRequest(
            max_bytes=size,
            topics=[FetchRequest.Topic(topic_id=hosted.topic_id, partitions=[part])],
        )
        try:
            peer = await self._peer(follower.leader)
            if peer is None:
                return None
            response = await peer.ask(request, FETCH_VERSION, FetchResponse, TIMEOUT_S)
        except PeerLost as lost:
            _log.debug("cannot compare %s-%d with its leader: %s", hosted.topic, hosted.index, lost)
            return None
        return _read(response)

    async def _peer(self, leader: int) -> Peer | None:
        broker = self._cluster.image.brokers.get(leader)
        known, peer = self._peers.get(leader, (None, None))
        if peer is not None and (known != broker or not peer.is_open):
            peer.close()
            del self._peers[leader]
            peer = None
        if broker is None or peer is not None:
            return peer
        peer = await self._connector.connect(
            broker,
            client_id=f"broker-{self._broker_id}-scrubber",
            timeout_s=TIMEOUT_S,
            response_bytes_max=PIECE_BYTES_MAX + _RESPONSE_SLACK_BYTES,
        )
        self._peers[leader] = (broker, peer)
        return peer


class _Theirs:
    """The leader's batches from an offset on: next offset, leader epoch and CRC by base offset."""

    def __init__(self) -> None:
        self.batches: dict[int, tuple[int, int, int]] = {}
        self.end_offset = -1


def _read(response: FetchResponse) -> _Theirs | None:
    """Returns None if the leader did not answer with valid records, which proves nothing."""
    parts = [part for topic in response.responses for part in topic.partitions]
    if response.error_code or len(parts) != 1 or parts[0].error_code or not parts[0].records:
        return None
    records = parts[0].records
    theirs = _Theirs()
    try:
        for _, header in iter_batches(b"".join(records) if isinstance(records, list) else records):
            theirs.batches[header.base_offset] = (
                header.next_offset,
                header.leader_epoch,
                header.crc,
            )
            theirs.end_offset = header.next_offset
    except CorruptBatch:
        return theirs if theirs.batches else None
    return theirs
