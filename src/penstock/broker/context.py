"""What a handler gets with its request: the parts of the broker, and the context of the request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from inspect import CORO_CLOSED, getcoroutinestate
from typing import Any, TypeVar

from penstock.broker.access.authorization import Authorization
from penstock.broker.access.delegation_tokens import DelegationTokens
from penstock.broker.access.quotas import ClientQuotas, RequestMeter
from penstock.broker.audit.trail import AuditTrail, origin_of
from penstock.broker.config import BrokerConfig
from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.controller import ControllerRuntime
from penstock.broker.control.membership import Endpoint
from penstock.broker.cooperative_yield import Slices, slices_of
from penstock.broker.coordinators.groups import GroupCoordinator
from penstock.broker.coordinators.markers import MarkerWriter
from penstock.broker.coordinators.producer_ids import ProducerIds
from penstock.broker.coordinators.share_state_client import ShareStateClient
from penstock.broker.coordinators.share_states import ShareCoordinator
from penstock.broker.coordinators.transactions import TransactionCoordinator
from penstock.broker.coordinators.verification import TransactionVerification
from penstock.broker.counters import BrokerCounters
from penstock.broker.delay.delay_leader import DelayLeader
from penstock.broker.identity import Identity
from penstock.broker.partitions.fetch_sessions import FetchSessions
from penstock.broker.partitions.large_batches import LargeBatches
from penstock.broker.partitions.pending_leadership import PendingLeadership
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.peers.connector import PeerConnector
from penstock.broker.replication.isr_proposals import IsrProposals
from penstock.broker.shares.share_leader import ShareLeader
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.delay_configs import DELAY_GROUP
from penstock.metadata.image import ClusterImage
from penstock.net.fair_turns import Turn
from penstock.net.timed_work import timed
from penstock.ports import Env, Slicing
from penstock.security.acls import CLUSTER_NAME, SUPPORTED_BITS, AclOperation, ResourceType
from penstock.security.audit import Origin, access
from penstock.storage.directory import LogDirectory
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")

_TOPIC = ResourceType.TOPIC
_GROUP = ResourceType.GROUP
_CLUSTER = ResourceType.CLUSTER
_TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID


@dataclass(slots=True)
class Services:
    """The parts of the broker that handlers may use."""

    env: Env
    config: BrokerConfig
    counters: BrokerCounters
    cluster: ClusterView
    authorization: Authorization
    tokens: DelegationTokens
    quotas: ClientQuotas
    audit: AuditTrail
    controller: ControllerRuntime
    replicas: Replicas
    directory: LogDirectory
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    marker_writer: MarkerWriter
    verification: TransactionVerification
    share_coordinator: ShareCoordinator
    share_state: ShareStateClient
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions
    isr_proposals: IsrProposals
    large_batches: LargeBatches
    pending_leadership: PendingLeadership
    connector: PeerConnector
    shares: ShareLeader
    delays: DelayLeader
    configs: Callable[[], BrokerConfigs]
    """The current broker settings: static, dynamic, default."""
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    """Runs a coroutine in the broker's task group, or closes it if the broker is ending."""
    apis: frozenset[ApiKey]
    creating: set[str]
    """Topics that are being created because a client asked for them."""
    response_room: Callable[[], int]
    """Returns how many bytes of memory answers to clients may use at the moment."""
    short_of_brokers: set[str] = field(default_factory=set)
    """Internal topics that cannot be created yet because there are too few brokers. The reason was
    logged once."""
    endpoint: Endpoint | None = None
    """This broker's advertised address. None until it listens."""

    @property
    def image(self) -> ClusterImage:
        return self.cluster.image

    def wall_ms(self) -> int:
        return self.env.clock.wall_ms()


class RequestContext:
    __slots__ = (
        "api_key",
        "client_id",
        "correlation_id",
        "identity",
        "is_appended",
        "is_large",
        "is_replica",
        "meter",
        "refusal",
        "services",
        "turn",
        "version",
    )

    def __init__(
        self,
        services: Services,
        version: int,
        client_id: str,
        identity: Identity,
        api_key: int = -1,
        correlation_id: int = -1,
    ) -> None:
        self.services = services
        self.version = version
        self.api_key = api_key
        self.correlation_id = correlation_id
        self.client_id = client_id
        """Empty if the client sent none."""
        self.identity = identity
        """The user, the address and the listener of the connection."""
        self.is_appended = False
        """Set by a produce request when all its batches are in the log and only wait for their
        commit. The connection's next produce request may then begin."""
        self.is_replica = False
        """Set by a fetch from a broker that is registered with the broker epoch it names."""
        self.refusal: Exception | None = None
        """The error with which the fast path has refused the only batch of a produce request."""
        self.is_large = False
        """The response is large, so it is encoded on a thread. Read when the response is ready."""
        self.meter: RequestMeter | None = None
        """Measures the request; None if there are no quotas, or it is exempt from them."""
        self.turn: Turn | None = None
        """Charges the user for the time of the request under overload."""

    @property
    def host(self) -> str:
        return self.identity.host

    # Access control. Each of these methods raises `KafkaError` with a retriable code if this broker
    # is not sure that it has the current ACLs (`access.authorization`).

    @property
    def has_authorizer(self) -> bool:
        """Whether there is an authorizer; without one, every client may do everything."""
        return self.services.authorization.current is not None

    def may(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        audited: bool = True,
    ) -> bool:
        """Returns whether the client may perform the operation on the resource.

        A refusal is recorded in the audit record. Use `audited=False` for a check whose refusal
        denies nothing that the client asked for: what a list contains, or one of two rights.
        """
        services = self.services
        allows = services.authorization.allows
        allowed = allows(self.identity, operation, resource_type, name, self.api_key)
        if services.audit.includes_allowed if allowed else audited:
            self._record(operation, resource_type, name)
        return allowed

    def may_topic(self, operation: AclOperation, name: str, *, audited: bool = True) -> bool:
        return self.may(operation, _TOPIC, name, audited=audited)

    def may_group(self, operation: AclOperation, group_id: str, *, audited: bool = True) -> bool:
        return self.may(operation, _GROUP, group_id, audited=audited)

    def may_transactional_id(
        self, operation: AclOperation, transactional_id: str, *, audited: bool = True
    ) -> bool:
        return self.may(operation, _TRANSACTIONAL_ID, transactional_id, audited=audited)

    def may_cluster(self, operation: AclOperation, *, audited: bool = True) -> bool:
        return self.may(operation, _CLUSTER, CLUSTER_NAME, audited=audited)

    def may_any(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Returns whether the client may perform the operation on some resource of the type."""
        services = self.services
        allows_any = services.authorization.allows_any
        allowed = allows_any(self.identity, operation, resource_type, self.api_key)
        if not allowed and services.audit.is_enabled:
            kind = resource_type.name.lower()
            rule = f"denied: no ACL allows it on any {kind}"
            event = access(
                self.origin(), services.wall_ms(), False, operation.name, f"{kind}:*", rule
            )
            services.audit.record(event)
        return allowed

    def origin(self) -> Origin:
        """Returns who sent this request, for the audit record."""
        api = "" if self.api_key < 0 else ApiKey(self.api_key).api_name
        request_id = f"{api} {self.correlation_id}"
        return origin_of(self.identity, request_id, self.client_id)

    def _record(self, operation: AclOperation, resource_type: ResourceType, name: str) -> None:
        """Records what the authorizer has decided, and by which rule."""
        services = self.services
        authorizer = services.authorization.current
        if authorizer is None or not services.audit.is_enabled:
            return
        who = self.identity.principal, self.identity.host
        decision = authorizer.decide(*who, operation, resource_type, name)
        event = access(
            self.origin(),
            services.wall_ms(),
            decision.allowed,
            operation.name,
            f"{resource_type.name.lower()}:{name}",
            str(decision),
        )
        services.audit.record(event)

    def require_topic(self, operation: AclOperation, name: str) -> None:
        if not self.may(operation, _TOPIC, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def require_group(self, operation: AclOperation, group_id: str) -> None:
        if group_id == DELAY_GROUP:
            raise KafkaError(
                ErrorCode.INVALID_GROUP_ID,
                f"brokers use the group '{DELAY_GROUP}' for delay topics: choose another name",
            )
        if not self.may(operation, _GROUP, group_id):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)

    def require_transactional_id(self, operation: AclOperation, transactional_id: str) -> None:
        if not self.may(operation, _TRANSACTIONAL_ID, transactional_id):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    def require_cluster(self, operation: AclOperation) -> None:
        if not self.may(operation, _CLUSTER, CLUSTER_NAME):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Returns the bit field of the operations that the client may perform."""
        authorizer = self.services.authorization.current
        if authorizer is None:
            return SUPPORTED_BITS[resource_type]
        identity = self.identity
        return authorizer.operations(identity.principal, identity.host, resource_type, name)

    @property
    def slicing(self) -> Slicing:
        return self.services.env.slicing

    def slices(self) -> Slices:
        return slices_of(self.services.env)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Runs a handler's coroutine in the broker's task group. Its result is the response."""
        return spawned(self.services, work, self.meter, self.turn)

    def charge_mutations(self, partitions: int, *, refused_since: int) -> None:
        """Counts created or deleted partitions for the client's quota.

        From the given version of the API on, raises `KafkaError` if the client is over it. Older
        clients do not know the error, and are only throttled.
        """
        if self.meter is None:
            return
        if self.version < refused_since:
            self.meter.record_mutations(partitions)
        elif not self.meter.admit_mutations(partitions):
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)


def spawned(
    services: Services,
    work: Coroutine[Any, Any, T],
    meter: RequestMeter | None = None,
    turn: Turn | None = None,
) -> asyncio.Future[T]:
    """Runs a coroutine in the broker's task group. The future gets its result or exception.

    The time of the event loop that this takes counts for the quota and the share of the user.

    The future is cancelled if the broker is ending and starts nothing more."""
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    spends = [each.spend for each in (meter, turn) if each is not None and each.is_timed]
    now = services.env.clock.monotonic
    resolving = _resolve(timed(work, now, spends) if spends else work, done)
    services.spawn(resolving)
    if getcoroutinestate(resolving) == CORO_CLOSED:
        work.close()
        done.cancel()
    return done


async def _resolve(work: Awaitable[T], done: asyncio.Future[T]) -> None:
    try:
        result = await work
    except asyncio.CancelledError:
        done.cancel()
        raise
    except Exception as error:  # noqa: BLE001 - dispatch turns it into an error response
        if not done.done():
            done.set_exception(error)
    else:
        if not done.done():
            done.set_result(result)
