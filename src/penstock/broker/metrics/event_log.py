"""Logs cluster events: one line for each change that an operator may ask about later.

The events are derived from changes of the cluster image, so each broker logs what it sees. A change
that concerns one broker is logged by that broker. A new leader logs from which broker it took the
partition over, and why. A leader logs which replicas joined or left its ISR. The controller logs
partitions that have no leader, and topics that are created or deleted. All brokers log which
brokers join or leave, and which broker becomes controller.

A broker that dies may have led thousands of partitions. So changes are collected for a moment, and
if many have the same cause, they are logged as one line with their number.

Every line has the same information as fields for programs (`logs.py`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.log_format import tell
from penstock.metadata.image import BrokerChange, Changed, ClusterImage, TopicChange
from penstock.metadata.model import NO_LEADER, Partition

GATHER_S: Final = 0.2
LINES_MAX: Final = 20
"""How many events of one kind and cause are logged one by one. If there are more, one line gives
their number."""
_NAMED_MAX: Final = 5
_log = logging.getLogger(__name__)


class Happened(NamedTuple):
    """An event of one partition."""

    kind: str
    reason: str
    """Equal for all events with the same cause."""
    topic: str
    partition: int
    before: Partition
    after: Partition


class EventLog:
    def __init__(self, broker: Broker, broker_id: int) -> None:
        self._broker = broker
        self._broker_id = broker_id
        self._counters = broker.counters
        self._gathered: list[Happened] = []
        self._timer: asyncio.TimerHandle | None = None
        self._controller: int | None = None
        broker.cluster.listen(self.on_change)

    def on_change(self, changed: Changed) -> None:
        image = self._broker.cluster.image
        # The first image shows the existing state, not changes.
        is_news = self._broker.services is not None
        for broker in changed.brokers if is_news else ():
            self._on_broker(broker, image)
        if changed.controller:
            self._on_controller(image)
        for topic in changed.topics if is_news else ():
            self._on_topic(topic, image)
        if self._gathered and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self.flush)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self.flush()

    # Brokers and the controller

    def _on_broker(self, change: BrokerChange, image: ClusterImage) -> None:
        before, after, broker_id = change.before, change.after, change.broker_id
        if after is None:
            tell(_log, "broker_left", f"broker {broker_id} left the cluster", broker_id=broker_id)
        elif before is not None and before.broker_epoch == after.broker_epoch:
            if broker_id in image.stopping:
                text = f"broker {broker_id} is stopping and hands over its partitions"
                tell(_log, "broker_stopping", text, broker_id=broker_id)
        else:
            again = "" if before is None else " after a restart or an expired session"
            tell(
                _log,
                "broker_joined",
                f"broker {broker_id} joined the cluster at {after.host}:{after.port}{again}",
                broker_id=broker_id,
                address=f"{after.host}:{after.port}",
                broker_epoch=after.broker_epoch,
            )

    def _on_controller(self, image: ClusterImage) -> None:
        term = image.controller
        if term is None or term.epoch == self._controller:
            return
        if self._controller is not None:
            self._counters.controller_changes += 1
        self._controller = term.epoch
        tell(
            _log,
            "controller_change",
            f"broker {term.broker_id} is the controller, controller epoch {term.epoch}",
            controller=term.broker_id,
            controller_epoch=term.epoch,
        )

    # Partitions

    def _on_topic(self, change: TopicChange, image: ClusterImage) -> None:
        before, after = change.before, change.after
        if after is None or before is None or after.topic_id != before.topic_id:
            self._tell_topic(change)
            return
        for index, partition in enumerate(after.partitions[: len(before.partitions)]):
            earlier = before.partitions[index]
            if partition.partition_epoch != earlier.partition_epoch:
                self._on_partition(change.name, index, earlier, partition, image)

    def _tell_topic(self, change: TopicChange) -> None:
        name, after = change.name, change.after
        if self._broker.controller.term is None:
            return
        if after is None:
            tell(_log, "topic_deleted", f"topic {name} was deleted", topic=name)
        else:
            count = len(after.partitions)
            text = f"topic {name} was created with {count} partition{'s' * (count != 1)}"
            tell(_log, "topic_created", text, topic=name, partitions=count)

    def _on_partition(
        self, topic: str, index: int, before: Partition, after: Partition, image: ClusterImage
    ) -> None:
        is_new_term = after.leader_epoch != before.leader_epoch
        if is_new_term and after.leader == self._broker_id:
            self._counters.leader_changes += 1
            reason = why_leader(before, after, image)
            self._note("leader_change", reason, topic, index, before, after)
        elif (
            after.leader == NO_LEADER
            and before.leader != NO_LEADER
            and self._broker.controller.term is not None
        ):
            reason = why_gone(before, image)
            self._note("partition_offline", reason, topic, index, before, after)
        if after.leader == self._broker_id and set(after.isr) != set(before.isr):
            left, joined = set(before.isr) - set(after.isr), set(after.isr) - set(before.isr)
            self._counters.isr_shrinks += bool(left)
            self._counters.isr_expansions += bool(joined)
            if not is_new_term:
                # The leader_change line already names the in-sync replicas.
                reason = " and ".join(_who("left", left) + _who("joined", joined))
                self._note("isr_change", reason, topic, index, before, after)

    def _note(
        self, kind: str, reason: str, topic: str, index: int, before: Partition, after: Partition
    ) -> None:
        self._gathered.append(Happened(kind, reason, topic, index, before, after))

    def flush(self) -> None:
        """Logs the collected events."""
        self._timer = None
        gathered, self._gathered = self._gathered, []
        alike: dict[tuple[str, str, int], list[Happened]] = {}
        for each in gathered:
            alike.setdefault((each.kind, each.reason, each.before.leader), []).append(each)
        for group in alike.values():
            if len(group) > LINES_MAX:
                self._tell_many(group)
            else:
                for each in group:
                    self._tell_one(each)

    def _tell_one(self, each: Happened) -> None:
        hosted = self._broker.replicas.get(each.topic, each.partition)
        before, after = each.before, each.after
        where = f"{each.topic}-{each.partition}"
        in_sync = f"ISR {sorted(after.isr)} of replicas {sorted(after.replicas)}"
        end = "" if hosted is None else f", log end offset {hosted.log.end_offset}"
        match each.kind:
            case "leader_change":
                text = (
                    f"{where}: leader {_name(before.leader)} -> {after.leader}: {each.reason}; "
                    f"leader epoch {after.leader_epoch}, {in_sync}{end}"
                )
            case "partition_offline":
                text = f"{where} has no leader: {each.reason}; ISR was {sorted(before.isr)}"
            case _:
                text = f"{where}: {each.reason} the ISR; {in_sync}{end}"
        level = logging.WARNING if each.kind == "partition_offline" else logging.INFO
        tell(
            _log,
            each.kind,
            text,
            level,
            topic=each.topic,
            partition=each.partition,
            reason=each.reason,
            leader_before=before.leader,
            leader=after.leader,
            leader_epoch=after.leader_epoch,
            isr_before=sorted(before.isr),
            isr=sorted(after.isr),
            replicas=sorted(after.replicas),
        )

    def _tell_many(self, group: list[Happened]) -> None:
        first = group[0]
        named = ", ".join(f"{each.topic}-{each.partition}" for each in group[:_NAMED_MAX])
        what = {
            "leader_change": f"leader {_name(first.before.leader)} -> {first.after.leader}: ",
            "partition_offline": "no leader: ",
        }.get(first.kind, "ISR: ")
        level = logging.WARNING if first.kind == "partition_offline" else logging.INFO
        tell(
            _log,
            first.kind,
            f"{len(group)} partitions: {what}{first.reason} ({named}, ...)",
            level,
            partitions=len(group),
            reason=first.reason,
            leader_before=first.before.leader,
            leader=first.after.leader,
        )


def why_leader(before: Partition, after: Partition, image: ClusterImage) -> str:
    """Returns why another broker leads, or the same broker in a new leader epoch."""
    if before.leader == NO_LEADER:
        return "it had no leader"
    if before.leader == after.leader:
        return "the broker was restarted or its session expired"
    if before.leader not in image.brokers or before.leader in image.stopping:
        return why_gone(before, image)
    if before.leader not in after.replicas:
        return "it was reassigned"
    if after.leader == after.replicas[0]:
        return "it is the preferred leader"
    return f"broker {before.leader} gave up the leadership"


def why_gone(before: Partition, image: ClusterImage) -> str:
    if before.leader in image.stopping:
        return f"broker {before.leader} is stopping"
    if before.leader not in image.brokers:
        return f"broker {before.leader} left the cluster"
    return f"broker {before.leader} cannot lead it"


def _name(leader: int) -> str:
    return "none" if leader == NO_LEADER else str(leader)


def _who(did: str, brokers: set[int]) -> list[str]:
    if not brokers:
        return []
    named = ", ".join(map(str, sorted(brokers)))
    return [f"{'broker' if len(brokers) == 1 else 'brokers'} {named} {did}"]
