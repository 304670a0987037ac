"""Creates the coordinators of a broker, and connects them with its partitions and its image."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.controller import ControllerRuntime
from penstock.broker.coordinators import coordinator_settings
from penstock.broker.coordinators.groups import GroupCoordinator
from penstock.broker.coordinators.markers import MarkerSender, MarkerWriter
from penstock.broker.coordinators.producer_ids import ProducerIds
from penstock.broker.coordinators.share_settings import ShareGroupSettingsTable
from penstock.broker.coordinators.share_state_client import ShareStateClient
from penstock.broker.coordinators.share_states import ShareCoordinator
from penstock.broker.coordinators.transactions import TransactionCoordinator
from penstock.broker.coordinators.verification import TransactionVerification
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.peers.connector import PeerConnector
from penstock.metadata.configs import BrokerConfigs
from penstock.ports import Env


class Coordinators(NamedTuple):
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    marker_writer: MarkerWriter
    verification: TransactionVerification
    producer_ids: ProducerIds
    share_coordinator: ShareCoordinator
    share_state: ShareStateClient


def assemble(
    env: Env,
    broker_id: int,
    cluster: ClusterView,
    controller: ControllerRuntime,
    replicas: Replicas,
    configs: BrokerConfigs,
    connector: PeerConnector,
    spawn: Callable[..., None],
    create_share_topic: Callable[[], str | None],
) -> Coordinators:
    groups = GroupCoordinator(
        env,
        broker_id,
        cluster,
        coordinator_settings.group_config(configs),
        spawn,
        coordinator_settings.consumer_group_config(configs),
        ShareGroupSettingsTable(configs, cluster),
    )
    producer_ids = ProducerIds(controller, env.random)
    writer = MarkerWriter(env, replicas, groups)
    transactions = TransactionCoordinator(
        env,
        broker_id,
        cluster,
        coordinator_settings.transaction_config(configs),
        producer_ids,
        MarkerSender(env, broker_id, cluster, writer, spawn, connector),
        spawn,
    )
    share_config = coordinator_settings.share_state_config(configs)
    shares = ShareCoordinator(env, broker_id, cluster, replicas, share_config, spawn)
    share_state = ShareStateClient(
        env, broker_id, cluster, shares, create_share_topic, spawn, connector
    )
    groups.share_calls.share_state = share_state
    for coordinator in (groups, transactions, shares):
        replicas.role_changes.on_leading(coordinator.on_leading)
        replicas.role_changes.on_resigned(coordinator.on_resigned)
        cluster.listen(coordinator.on_change)
    replicas.role_changes.on_resigned(share_state.on_resigned)
    return Coordinators(
        groups=groups,
        transactions=transactions,
        marker_writer=writer,
        verification=TransactionVerification(
            env, broker_id, cluster, transactions, spawn, connector
        ),
        producer_ids=producer_ids,
        share_coordinator=shares,
        share_state=share_state,
    )
