"""A client's view of the cluster: its brokers, leaders and coordinators, and how to reach them.

Every request goes to one of four: any broker, the controller, the coordinator of a group, or the
leader of a partition. These roles can move at any time; brokers then answer with retriable error
codes. So every request is an `attempt` that is repeated with fresh metadata until it succeeds,
fails for good, or its deadline has passed. The waits between attempts double and have jitter, so
that many clients do not come back at once.

Only the very first contact is not retried after each address was tried once: a user who mistyped an
address should learn of it immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from penstock.client.address import Address
from penstock.client.connection import Connection, ConnectionConfig
from penstock.client.connection_opening import open_connection
from penstock.client.errors import (
    AuthenticationFailed,
    BrokerError,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    RequestTimedOut,
    TlsFailed,
    TopicNotFound,
    check,
)
from penstock.client.leaders import Leader, leaders_of, newest_leaders
from penstock.client.loop_threads import LoopThreads
from penstock.ports import Clock, Executor, Network, Random
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from penstock.wire.messages.base import Request, Response

R = TypeVar("R", bound=Response)
T = TypeVar("T")

_GROUP: int = 0
_TRANSACTION: int = 1
_CANCELLED: str = "the metadata request was cancelled"
_CLOSE_S: float = 1.0
"""How long a connection with TLS waits for its broker when it closes."""
_AUTO_CREATE_WAIT_S: float = 3.0
"""How long a topic that the broker was asked to create may take to appear."""

_NO_LEADERS: Mapping[int, Leader] = {}
_NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    bootstrap: tuple[Address, ...]
    connection: ConnectionConfig = field(default_factory=ConnectionConfig)
    deadline_s: float = 30.0
    """How long a request is tried before it fails, including all attempts."""
    retry_backoff_s: float = 0.05
    retry_backoff_max_s: float = 1.0


class Cluster:
    """Use it as `async with Cluster(...) as cluster`. It connects when it is entered."""

    def __init__(
        self,
        config: ClusterConfig,
        network: Network,
        clock: Clock,
        random: Random,
        executor: Executor | None = None,
    ) -> None:
        """`executor` hashes passwords and reads certificates. None: threads of the event loop."""
        self.config = config
        self.clock = clock
        self.random = random
        self.brokers: dict[int, Address] = {}
        self.controller_id = -1
        self.cluster_id: str | None = None
        self._network = network
        self.executor: Executor = executor or LoopThreads()
        self._security = config.connection.security.for_connections(random, self.executor)
        self._refused: dict[Address, tuple[float, AuthenticationFailed]] = {}
        """When and why a broker last refused the login."""
        self._connections: dict[tuple[Address, str], Connection] = {}
        self._closing: list[Connection] = []
        self._opening: dict[tuple[Address, str], asyncio.Lock] = {}
        self._topics: dict[str, MetadataResponse.Topic] = {}
        self._leaders: dict[str, dict[int, Leader]] = {}
        self._coordinators: dict[str, int] = {}
        self._transaction_coordinators: dict[str, int] = {}
        self._refreshing: dict[tuple[object, ...], asyncio.Future[None]] = {}

    async def __aenter__(self) -> Self:
        try:
            await self._meet()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        await self.closed()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
            if self._security is not None and self._security.tls is not None:
                self._closing.append(connection)
        self._connections.clear()

    async def closed(self) -> None:
        """Waits until connections with TLS are closed: both sides say so. Without this, they would
        still be open when the event loop ends."""
        closing, self._closing = self._closing, []
        await asyncio.gather(*(connection.closed(_CLOSE_S) for connection in closing))

    async def _meet(self) -> None:
        # Each address is tried until one answers: a broker may be stopping or hanging.
        failures: list[ClientError] = []
        for address in dict.fromkeys(self.config.bootstrap):
            try:
                connection = await self._connect(address, "")
                await self._learn(connection, MetadataRequest(topics=[]))
            except (ConnectFailed, ConnectionLost, RequestTimedOut) as error:
                failures.append(error)
            else:
                return
        raise _nobody(failures)

    # -- requests -------------------------------------------------------------------------------

    async def retry(
        self,
        what: str,
        attempt: Callable[[bool], Awaitable[T]],
        *,
        deadline_s: float | None = None,
        idempotent: bool = True,
    ) -> T:
        """Repeats the attempt until it succeeds. From the second time on, `fresh` is True.

        An attempt that is not idempotent is not repeated once it may have taken effect: when the
        connection was lost or no response arrived.
        """
        limit_s = self.config.deadline_s if deadline_s is None else deadline_s
        end = self.clock.monotonic() + limit_s
        backoff_s = self.config.retry_backoff_s
        fresh = False
        while True:
            try:
                return await attempt(fresh)
            except ClientError as error:
                uncertain = isinstance(error, ConnectionLost | RequestTimedOut)
                if not error.retriable or (uncertain and not idempotent):
                    raise
                pause_s = backoff_s * (0.5 + self.random.uniform())
                if self.clock.monotonic() + pause_s >= end:
                    raise DeadlineExceeded(what, limit_s, error) from error
            await self.clock.sleep(pause_s)
            backoff_s = min(backoff_s * 2, self.config.retry_backoff_max_s)
            fresh = True

    async def ask_any(self, request: Request, response_class: type[R]) -> R:
        async def attempt(fresh: bool) -> R:
            return await (await self._any()).call(request, response_class)

        return await self.retry(_name(request), attempt)

    async def ask_broker(self, broker_id: int, request: Request, response_class: type[R]) -> R:
        async def attempt(fresh: bool) -> R:
            return await (await self.connection(broker_id)).call(request, response_class)

        return await self.retry(f"{_name(request)} at broker {broker_id}", attempt)

    async def ask_controller(
        self,
        request: Request,
        response_class: type[R],
        codes: Callable[[R], Iterable[int]],
        *,
        idempotent: bool = False,
    ) -> R:
        """Sends a request to the controller.

        `codes` returns the error codes of a response. Some of them mean that another broker is the
        controller.
        """

        async def attempt(fresh: bool) -> R:
            answer = await (await self._controller(fresh)).call(request, response_class)
            _raise_for(codes(answer), (ErrorCode.NOT_CONTROLLER,))
            return answer

        return await self.retry(_name(request), attempt, idempotent=idempotent)

    async def controller_connection(self) -> Connection:
        """Returns a connection to the controller, for requests whose form depends on the broker's
        version."""

        async def attempt(fresh: bool) -> Connection:
            return await self._controller(fresh)

        return await self.retry("the controller", attempt)

    async def _controller(self, fresh: bool) -> Connection:
        if fresh or self.controller_id not in self.brokers:
            await self._refresh(MetadataRequest(topics=[]))
        return await self.connection(self.controller_id)

    async def ask_coordinator(
        self,
        group: str,
        request: Request,
        response_class: type[R],
        codes: Callable[[R], Iterable[int]],
    ) -> R:
        async def attempt(fresh: bool) -> R:
            coordinator = await self.coordinator(group, fresh=fresh)
            answer = await coordinator.call(request, response_class)
            _raise_for(
                codes(answer),
                (
                    ErrorCode.NOT_COORDINATOR,
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                ),
            )
            return answer

        return await self.retry(f"{_name(request)} for group {group}", attempt)

    def coordinator_of(self, group: str) -> int:
        """Returns the broker that last answered for the group; -1 if none has."""
        return self._coordinators.get(group, -1)

    async def coordinator_connection(self, group: str) -> Connection:
        """Returns a connection to the coordinator, for requests whose form depends on the broker's
        version."""

        async def attempt(fresh: bool) -> Connection:
            return await self.coordinator(group, fresh=fresh)

        return await self.retry(f"the coordinator of group {group}", attempt)

    async def coordinator(
        self, group: str, *, purpose: str = "", fresh: bool = False
    ) -> Connection:
        """Makes one attempt to connect to the coordinator. `fresh` looks up the coordinator
        again."""
        if fresh or group not in self._coordinators:
            self._coordinators[group] = await self._find_coordinator(group, _GROUP)
        return await self.connection(self._coordinators[group], purpose)

    async def transaction_coordinator(
        self, transactional_id: str, *, fresh: bool = False
    ) -> Connection:
        """Makes one attempt to connect to the coordinator of a transactional id."""
        known = self._transaction_coordinators
        if fresh or transactional_id not in known:
            known[transactional_id] = await self._find_coordinator(transactional_id, _TRANSACTION)
        return await self.connection(known[transactional_id])

    def transaction_coordinator_of(self, transactional_id: str) -> int:
        """Returns the broker that last answered for the transactional id; -1 if none has."""
        return self._transaction_coordinators.get(transactional_id, -1)

    async def _find_coordinator(self, name: str, kind: int) -> int:
        connection = await self._any()
        if connection.version_of(FindCoordinatorRequest) >= 4:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])
        else:
            request = FindCoordinatorRequest(key=name, key_type=kind)
        answer = await connection.call(request, FindCoordinatorResponse)
        found = answer.coordinators[0] if answer.coordinators else answer
        whose = "group" if kind == _GROUP else "transactional id"
        check(found.error_code, found.error_message, f"the coordinator of {whose} {name}")
        self.brokers[found.node_id] = Address(found.host, found.port)
        return found.node_id

    # -- metadata -------------------------------------------------------------------------------

    async def metadata(self, topics: Sequence[str] | None = None) -> MetadataResponse:
        """Requests the current metadata of these topics (None: all topics)."""
        wanted = None if topics is None else [MetadataRequest.Topic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)

        async def attempt(fresh: bool) -> MetadataResponse:
            return await self._refresh(request)

        return await self.retry("Metadata", attempt)

    async def partitions(self, topic: str, *, auto_create: bool = False) -> int:
        """Returns the topic's number of partitions. With `auto_create` the broker may create the
        topic."""
        request = MetadataRequest(
            topics=[MetadataRequest.Topic(name=topic)], allow_auto_topic_creation=auto_create
        )

        async def attempt(fresh: bool) -> int:
            found = (await self._refresh(request)).topics[0]
            if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not auto_create:
                raise TopicNotFound(topic)
            check(found.error_code, subject=f"topic {topic}")
            return len(found.partitions)

        try:
            wait_s = _AUTO_CREATE_WAIT_S if auto_create else None
            return await self.retry(f"topic {topic}", attempt, deadline_s=wait_s)
        except DeadlineExceeded as error:
            if getattr(error.last, "code", None) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise TopicNotFound(topic) from error
            raise

    async def leader(self, topic_partition: TopicPartition, *, fresh: bool = False) -> int:
        """Returns the known leader of the partition. `fresh` asks the cluster again."""
        if fresh or topic_partition.topic not in self._topics:
            await self._refresh(
                MetadataRequest(
                    topics=[MetadataRequest.Topic(name=topic_partition.topic)],
                    allow_auto_topic_creation=False,
                )
            )
        topic = self._topics.get(topic_partition.topic)
        if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise TopicNotFound(topic_partition.topic)
        check(topic.error_code, subject=f"topic {topic_partition.topic}")
        leader = self._leaders[topic_partition.topic].get(topic_partition.partition)
        if leader is None:
            raise TopicNotFound(topic_partition.topic, topic_partition.partition)
        if leader.broker_id not in self.brokers:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, subject=str(topic_partition))
        return leader.broker_id

    def known_leader(self, topic_partition: TopicPartition) -> Leader | None:
        """Returns the known leader without asking the cluster; None if it is unknown or there is
        none."""
        leader = self._leaders.get(topic_partition.topic, _NO_LEADERS).get(
            topic_partition.partition
        )
        return leader if leader is not None and leader.broker_id in self.brokers else None

    def known_partitions(self, topic: str) -> int | None:
        """Returns the known number of partitions without asking the cluster; None if it is
        unknown."""
        known = self._topics.get(topic)
        if known is None or known.error_code != ErrorCode.NONE:
            return None
        return len(known.partitions)

    def known_topic(self, topic: str) -> MetadataResponse.Topic | None:
        """Returns the last metadata of the topic, including errors."""
        return self._topics.get(topic)

    async def refresh(
        self, topics: Iterable[str], *, auto_create: bool = False, avoid: frozenset[int] = _NOBODY
    ) -> None:
        """Requests the metadata of these topics once. Concurrent calls for the same topics share
        the answer. Brokers to `avoid` may be frozen: they are asked only if no other answers."""
        names = tuple(sorted(set(topics)))
        key = names, auto_create, avoid
        pending = self._refreshing.get(key)
        if pending is None:
            pending = asyncio.get_running_loop().create_future()
            self._refreshing[key] = pending
            request = MetadataRequest(
                topics=[MetadataRequest.Topic(name=name) for name in names],
                allow_auto_topic_creation=auto_create,
            )
            try:
                await self._refresh(request, avoid)
            except BaseException as error:
                shared = error if isinstance(error, ClientError) else ConnectionLost(_CANCELLED)
                pending.set_exception(shared)
                pending.exception()  # Avoids a warning if no other call waits.
                raise
            else:
                pending.set_result(None)
            finally:
                del self._refreshing[key]
        else:
            await asyncio.shield(pending)

    def forget(self, topic: str) -> None:
        """Drops the topic's metadata, so that the next request for its leaders asks the cluster."""
        self._topics.pop(topic, None)
        self._leaders.pop(topic, None)

    async def _refresh(
        self, request: MetadataRequest, avoid: frozenset[int] = _NOBODY
    ) -> MetadataResponse:
        return await self._learn(await self._any(avoid), request)

    async def _learn(self, connection: Connection, request: MetadataRequest) -> MetadataResponse:
        answer = await connection.call(request, MetadataResponse)
        check(answer.error_code, subject="Metadata")
        # A broker that knows no brokers, not even itself, has only just started.
        if answer.brokers:
            self.brokers = {
                broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers
            }
        self.controller_id = answer.controller_id
        self.cluster_id = answer.cluster_id
        for topic in answer.topics:
            if topic.name is not None:
                known = newest_leaders(self._topics.get(topic.name), topic)
                self._topics[topic.name] = known
                self._leaders[topic.name] = leaders_of(known)
        return answer

    # -- connections ----------------------------------------------------------------------------

    async def connection(self, broker_id: int, purpose: str = "") -> Connection:
        """Returns the connection to a broker.

        Each `purpose` has its own connection, because a long poll blocks the requests behind it.
        """
        address = self.brokers.get(broker_id)
        if address is None:
            raise ConnectFailed(f"broker {broker_id}", "it is not in the cluster at the moment")
        return await self._connect(address, purpose)

    async def _any(self, avoid: frozenset[int] = _NOBODY) -> Connection:
        others = [address for each, address in self.brokers.items() if each not in avoid]
        for (address, purpose), connection in self._connections.items():
            # A bootstrap server may be a broker to avoid, under another name.
            if not purpose and connection.is_open and (address in others or not avoid):
                return connection
        failures: list[ClientError] = []
        for address in dict.fromkeys((*others, *self.brokers.values(), *self.config.bootstrap)):
            try:
                return await self._connect(address, "")
            except ConnectFailed as error:
                failures.append(error)
        raise _nobody(failures)

    async def _connect(self, address: Address, purpose: str) -> Connection:
        key = address, purpose
        async with self._opening.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is None or not connection.is_open:
                connection = await self._open(address)
                self._connections[key] = connection
            return connection

    async def _open(self, address: Address) -> Connection:
        """Opens a connection. After a refused login, the same error is raised for a while without
        another attempt: many callers must not make many logins that cannot succeed."""
        refused_at, refusal = self._refused.get(address, (0.0, None))
        if refusal is not None:
            if self.clock.monotonic() - refused_at < self.config.retry_backoff_max_s:
                raise refusal
            del self._refused[address]
        config = self.config.connection
        try:
            return await open_connection(self._network, address, config, self._security)
        except AuthenticationFailed as error:
            self._refused[address] = self.clock.monotonic(), error
            raise


def _nobody(failures: Sequence[ClientError]) -> ClientError:
    if len(failures) == 1:
        return failures[0]
    reasons = (
        f"{failure.address}: {failure.reason}" if isinstance(failure, ConnectFailed) else failure
        for failure in failures
    )
    # If TLS fails at every broker, more attempts are of no use.
    lasts = bool(failures) and all(isinstance(failure, TlsFailed) for failure in failures)
    kind = TlsFailed if lasts else ConnectFailed
    return kind("any broker", "; ".join(map(str, reasons)))


def _raise_for(codes: Iterable[int], retriable: tuple[ErrorCode, ...]) -> None:
    for code in codes:
        if code in retriable:
            raise BrokerError(code)


def _name(request: Request) -> str:
    return type(request).__name__.removesuffix("Request")
