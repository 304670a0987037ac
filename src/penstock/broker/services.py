"""The parts of the broker that handlers may use, as one object that is passed to each handler."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.broker.cluster import ClusterView
from penstock.broker.config import BrokerConfig
from penstock.broker.controller import ControllerRuntime
from penstock.broker.replicas import Replicas
from penstock.broker.watch.figures import Figures
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.image import ClusterImage
from penstock.ports import Env
from penstock.wire.api import ApiKey

if TYPE_CHECKING:
    from penstock.broker.coordinator import GroupCoordinator
    from penstock.broker.fetch_sessions import FetchSessions
    from penstock.broker.isr_changes import IsrChanges
    from penstock.broker.large_batches import LargeBatches
    from penstock.broker.led_soon import LedSoon
    from penstock.broker.membership import Place
    from penstock.broker.producer_ids import ProducerIds
    from penstock.broker.txn_coordinator import TransactionCoordinator
    from penstock.broker.txn_markers import MarkerWriter
    from penstock.broker.txn_verification import TransactionVerification
    from penstock.storage.directory import LogDirectory


@dataclass(slots=True)
class Services:
    env: Env
    config: BrokerConfig
    figures: Figures
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
    isr_changes: IsrChanges
    large_batches: LargeBatches
    led_soon: LedSoon
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
