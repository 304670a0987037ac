"""The parts of the broker that handlers may use, as one object that is passed to each handler."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.broker.config import BrokerConfig
from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.controller import ControllerRuntime
from penstock.broker.counters import BrokerCounters
from penstock.broker.partitions.replicas import Replicas
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.image import ClusterImage
from penstock.ports import Env
from penstock.wire.api import ApiKey

if TYPE_CHECKING:
    from penstock.broker.control.membership import Place
    from penstock.broker.coordinators.groups import GroupCoordinator
    from penstock.broker.coordinators.markers import MarkerWriter
    from penstock.broker.coordinators.producer_ids import ProducerIds
    from penstock.broker.coordinators.transactions import TransactionCoordinator
    from penstock.broker.coordinators.verification import TransactionVerification
    from penstock.broker.partitions.fetch_sessions import FetchSessions
    from penstock.broker.partitions.large_batches import LargeBatches
    from penstock.broker.partitions.pending_leadership import PendingLeadership
    from penstock.broker.replication.isr_proposals import IsrProposals
    from penstock.storage.directory import LogDirectory


@dataclass(slots=True)
class Services:
    env: Env
    config: BrokerConfig
    counters: BrokerCounters
    cluster: ClusterView
    controller: ControllerRuntime
    replicas: Replicas
    directory: LogDirectory
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    marker_writer: MarkerWriter
    verification: TransactionVerification
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions
    isr_proposals: IsrProposals
    large_batches: LargeBatches
    pending_leadership: PendingLeadership
    configs: Callable[[], BrokerConfigs]
    """The current broker settings: static, dynamic, default."""
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    """Runs a coroutine in the broker's task group."""
    apis: frozenset[ApiKey]
    creating: set[str]
    """Topics that are being created because a client asked for them."""
    response_room: Callable[[], int]
    """Returns how many bytes of memory answers to clients may use at the moment."""
    short_of_brokers: set[str] = field(default_factory=set)
    """Internal topics that cannot be created yet because there are too few brokers. The reason was
    logged once."""
    place: Place | None = None
    """This broker's advertised address. None until it listens."""

    @property
    def image(self) -> ClusterImage:
        return self.cluster.image

    def now_ms(self) -> int:
        return self.env.clock.wall_ms()
