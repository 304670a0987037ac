"""Batches that come a moment before their partition is led here: they wait, in their order.

A client may hear of a leader before the leader does, or come while a term waits for its epoch to be
on disk. To refuse its batch would do no harm by itself, as it is sent again. But an idempotent
producer has more batches on their way: when the term begins between two of them, the second is out
of order. librdkafka then begins a new producer epoch and sends everything again that no broker has
confirmed, under new numbers. Whatever of that an earlier leader had written is then in the log
twice.

So whoever is refused only because the metadata is ahead of this broker waits here, and so does
all that comes after it for the partition. All are taken when the term begins, before anything else
can come in between, or refused together when that takes too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.broker.cluster import ClusterView
from penstock.broker.hosted import HostedPartition
from penstock.broker.replicas import Replicas

WAIT_S: Final = 2.0

GoOn = Callable[[], None]


class LedSoon:
    def __init__(self, broker_id: int, cluster: ClusterView, replicas: Replicas) -> None:
        self._broker_id = broker_id
        self._cluster = cluster
        self._replicas = replicas
        self._waiting: dict[tuple[str, int], list[GoOn]] = {}
        self._timers: dict[tuple[str, int], asyncio.TimerHandle] = {}
        replicas.on_role(self._on_role)

    def put_off(self, topic: str, index: int, go_on: GoOn) -> bool:
        """Whether the partition is about to be led here; then `go_on` is called once: when it is,
        or when nobody should wait for that any longer."""
        if not self._is_due(topic, index):
            return False
        place = topic, index
        self._waiting.setdefault(place, []).append(go_on)
        if place not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[place] = loop.call_later(WAIT_S, self._release, place)
        return True

    def _is_due(self, topic: str, index: int) -> bool:
        partition = self._cluster.image.partition(topic, index)
        if (
            partition is None
            or partition.leader != self._broker_id
            or partition.leader_broker_epoch != self._replicas.broker_epoch
        ):
            return False
        hosted = self._replicas.get(topic, index)
        return hosted is None or (hosted.leadership is None and hosted.log.failure is None)

    def _on_role(self, hosted: HostedPartition) -> None:
        place = hosted.topic, hosted.index
        if place in self._waiting and not self._is_due(*place):
            self._release(place)

    def _release(self, place: tuple[str, int]) -> None:
        timer = self._timers.pop(place, None)
        if timer is not None:
            timer.cancel()
        for go_on in self._waiting.pop(place, ()):
            go_on()
