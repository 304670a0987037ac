"""Wires the parts of one broker together, and starts and stops them in order.

Start: load the cluster image, open the logs, listen, register, write down what the broker can prove
about its logs (`durability_proof`), then lead and follow partitions and serve clients. A request
that arrives before that is complete gets a retriable error.

Stop: hand leadership over while everything still runs, so that clients find the next leader at
once; leave the cluster, so that no more clients are directed here; finish the requests that wait;
close the logs; record that the stop was clean.

A broker whose session has expired does not stop. It resigns all leaderships, registers again and
takes up the roles that the metadata gives it under its new broker epoch.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from penstock.broker.access.authorization import Authorization
from penstock.broker.access.credentials import UserCredentials
from penstock.broker.access.delegation_tokens import DelegationTokens
from penstock.broker.access.quotas import ClientQuotas
from penstock.broker.audit.settings import audit_settings
from penstock.broker.audit.topic import AuditTopic
from penstock.broker.audit.trail import AuditTrail
from penstock.broker.config import BrokerConfig
from penstock.broker.context import Services
from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.commits import Commits
from penstock.broker.control.controller import ControllerRuntime
from penstock.broker.control.membership import Endpoint, Membership
from penstock.broker.coordinators import coordinator_settings
from penstock.broker.coordinators.assembly import assemble
from penstock.broker.counters import BrokerCounters
from penstock.broker.delay.delay_leader import DelayLeader
from penstock.broker.dispatch import BrokerSession, Dispatcher
from penstock.broker.error_codes import EXPECTED_ERRORS, only_failure
from penstock.broker.handlers.topic_creation import create_share_state_topic
from penstock.broker.identity import ANONYMOUS, Identity
from penstock.broker.listeners.listener_set import ListenerSet, stored_endpoints
from penstock.broker.partitions.fetch_sessions import SESSION_ID_MAX, FetchSessions
from penstock.broker.partitions.large_batches import LargeBatches
from penstock.broker.partitions.maintenance import Maintenance
from penstock.broker.partitions.offset_checkpoints import OffsetCheckpoints
from penstock.broker.partitions.pending_leadership import PendingLeadership
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.partitions.topic_keys import TopicKeys
from penstock.broker.partitions.topic_rules import log_config
from penstock.broker.repair.disk_full import DiskFullGuard
from penstock.broker.repair.durability_proof import LosslessRecord
from penstock.broker.repair.failed_logs import FailedLogs
from penstock.broker.repair.replica_repair import ReplicaRepair
from penstock.broker.repair.scrubber import Scrubber
from penstock.broker.replication.isr_proposals import IsrProposals
from penstock.broker.replication.replica_fetcher import ReplicaFetchers
from penstock.broker.schedules.bucket_index import clear_leftovers
from penstock.broker.shares.letter_recovery import LetterRecovery
from penstock.broker.shares.letter_sender import COPIES_CLIENT, LetterSender
from penstock.broker.shares.share_leader import ShareLeader
from penstock.metadata.broker_configs import DEFAULT_DURABILITY
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.image import TopicChange
from penstock.metadata.users import create_decoy_secret
from penstock.net.config import ServerConfig
from penstock.net.server import Server
from penstock.net.session import Peer, Session
from penstock.ports import Env
from penstock.storage.closing import close_logs
from penstock.storage.config import LogConfig
from penstock.storage.data_keys import Keyring
from penstock.storage.directory import DirectoryConfig, LogDirectory

_log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 1.0
"""How long a stopping broker waits for responses that are still pending."""
HAND_OVER_TIMEOUT_S = 4.0
"""How long a stopping broker tries to hand over its partitions."""


def _log_directory(env: Env, config: BrokerConfig) -> LogDirectory:
    limits = DirectoryConfig(
        open_files_max=config.open_files_max, disk_reserve_bytes=config.disk_reserve_bytes
    )
    keyring = Keyring(env.keys, env.random)
    return LogDirectory(env.disk, f"{config.data_dir}/logs", limits, keyring)


def _lossless_record(env: Env, config: BrokerConfig) -> LosslessRecord:
    durability = BrokerConfigs(dict(config.kafka)).text_value(DEFAULT_DURABILITY)
    return LosslessRecord(
        env.disk,
        config.data_dir,
        config.broker_id,
        env.boot_id,
        asks_for_fsync=durability == "fsync",
    )


class Broker:
    def __init__(self, env: Env, config: BrokerConfig) -> None:
        self._env = env
        self._config = config
        self.counters = BrokerCounters(env.clock)
        self.cluster = ClusterView(env.store)
        self._directory = _log_directory(env, config)
        self._record = _lossless_record(env, config)
        self._logs_are_whole = True
        commits = Commits(env.store, self.cluster)
        settings = self.configs()
        self.membership = Membership(
            env,
            self.cluster,
            commits,
            config.broker_id,
            settings.int_value("broker.session.timeout.ms") / 1000,
            settings.int_value("broker.heartbeat.interval.ms") / 1000,
        )
        self.authorization = Authorization(
            env, self.cluster, commits, self.membership, config.broker_id, settings
        )
        self.tokens = DelegationTokens(env, self.cluster, self.authorization, settings)
        self.quotas = ClientQuotas(env, self.cluster)
        broker_id = config.broker_id
        self.audit = AuditTrail(env, audit_settings(settings, config))
        self.controller = ControllerRuntime(
            env, self.cluster, commits, self.membership, broker_id, self.configs, dict(config.kafka)
        )
        parts = self.cluster, self._directory, self.configs
        self.replicas = Replicas(env, broker_id, *parts, config.flush_threads, self.counters)
        self._offset_keeper = OffsetCheckpoints(env, self._directory, self.replicas, self.configs)
        self._dispatcher = Dispatcher(
            coordinator_settings.serves_consumer_groups(settings),
            coordinator_settings.serves_share_groups(settings),
        )
        sessions_max = settings.int_value("group.share.max.share.sessions")
        self._large_batches = LargeBatches(env.clock, env.executor, self._spawn)
        self.shares = ShareLeader(
            env, self.replicas, sessions_max, self._spawn, self._large_batches
        )
        self.cluster.listen(self.shares.on_change)
        self.server = Server(env.network, env.clock, self._server_config(), self._session_of)
        self.credentials = UserCredentials(self.cluster, self.tokens)
        sessions = self.credentials, self._dispatcher, self._session_of, self._spawn
        self.listeners = ListenerSet(env, config, *sessions, self.quotas, self.audit)
        self.server.admission.on_refused = self.audit.on_connection_refused
        self._connector = self.listeners.peer_connector(config)
        self.fetchers = ReplicaFetchers(
            env, config.broker_id, self.cluster, self.replicas, self.configs, self._connector
        )
        self._apply_limits()
        self.cluster.listen(lambda changed: self._apply_limits() if changed.configs else None)
        self._tasks: asyncio.TaskGroup | None = None
        self._spawned: dict[asyncio.Task[None], None] = {}
        self._services: Services | None = None

    @property
    def services(self) -> Services | None:
        """The parts of the broker that handlers use. None until the logs are open and the parts
        are wired together."""
        return self._services

    # Settings

    def configs(self) -> BrokerConfigs:
        """Returns the broker settings that are in force now."""
        image = self.cluster.image
        dynamic = image.broker_configs.get(self._config.broker_id, {})
        key = (image.default_broker_configs, dynamic)
        held = getattr(self, "_configs", None)
        if held is None or held[0] != key:
            static = {**self._own_settings(), **dict(self._config.kafka)}
            if self._config.session_timeout_s:
                session_ms = max(1, round(self._config.session_timeout_s * 1000))
                static["broker.session.timeout.ms"] = str(session_ms)
            held = self._configs = (
                key,
                BrokerConfigs(
                    static=static,
                    dynamic_default=image.default_broker_configs,
                    # Earlier versions let durability be set for one broker. Elections do not
                    # know of such a setting, so it is ignored.
                    dynamic={k: v for k, v in dynamic.items() if k != DEFAULT_DURABILITY},
                ),
            )
        return held[1]

    def _own_settings(self) -> dict[str, str]:
        """Returns this broker's own settings under Kafka's names, for Kafka's tools."""
        config = self._config
        listeners = config.listeners
        ports = {each.name: each.port for each in listeners.bound}
        told = listeners.endpoints(ports, _reachable(""))
        return {
            "broker.id": str(config.broker_id),
            "node.id": str(config.broker_id),
            "listeners": ",".join(map(str, listeners.bound)),
            "advertised.listeners": ",".join(map(str, told)),
            "log.dirs": self._directory.root,
            "max.connections": str(config.connections_max),
            "max.connections.per.ip": str(config.connections_per_address_max),
            "socket.request.max.bytes": str(config.request_bytes_max),
            "connections.max.idle.ms": str(int(config.idle_timeout_s * 1000)),
            **({"broker.rack": config.rack} if config.rack else {}),
        }

    def _apply_limits(self) -> None:
        """Applies the connection limits, which can be changed while the broker runs."""
        self.listeners.apply_limits(self.configs(), self.server)

    def _server_config(self) -> ServerConfig:
        config, configs = self._config, self.configs()
        idle_ms = configs.int_value("connections.max.idle.ms")
        part = max(1, config.bytes_in_flight_max // 4)
        return ServerConfig(
            host=config.host,
            port=config.port,
            frame_bytes_max=configs.int_value("socket.request.max.bytes"),
            request_bytes_max=2 * part,
            large_request_bytes_max=part,
            response_bytes_max=part,
            idle_timeout_s=max(1, idle_ms) / 1000 if idle_ms >= 0 else math.inf,
        )

    def _log_config(self, topic: str, _: int) -> LogConfig:
        known = self.cluster.image.topics.get(topic)
        return log_config(self.configs().settings(known.configs if known is not None else {}))

    # Lifecycle

    async def run(self, stop: asyncio.Event, on_ready: Callable[[str, int], None]) -> None:
        """Serves until `stop` is set. Calls `on_ready` with the address once clients can use it."""
        try:
            await self._run(stop, on_ready)
        except BaseExceptionGroup as failures:
            # There is usually one cause. The caller should see that exception, not the group.
            raise (only_failure(failures) or failures) from None

    async def _run(self, stop: asyncio.Event, on_ready: Callable[[str, int], None]) -> None:
        await self.listeners.load()
        await self.cluster.load()
        await self.authorization.refresh()
        await self.quotas.refresh()
        await self._open_logs()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._services = self._wire()
                running: list[asyncio.Task[None]] = []

                def start(*works: Coroutine[Any, Any, None]) -> None:
                    running.extend(tasks.create_task(work) for work in works)

                start(self.replicas.flusher.run(), self.cluster.follow())
                start(self.replicas.run(), self.replicas.deleted_logs.free_space())
                start(self.authorization.run(), self.quotas.run())
                endpoint = await self._join()
                start(self.membership.keep(lambda: self._start_over(endpoint)))
                await self.controller.begin()
                start(
                    self.controller.watch_over(),
                    Maintenance(
                        self._env, self._directory, self.replicas, self.counters, self.configs
                    ).run(),
                    self._services.isr_proposals.run(),
                    self.fetchers.run(),
                    self._offset_keeper.run(),
                    self.listeners.run(),
                    TopicKeys(self._env, self._directory, self.replicas.note_offline).run(),
                    self.audit.run(),
                    self.tokens.run(self.controller),
                    *self._repairs(),
                )
                self._take_up()
                await self.replicas.settled()
                on_ready(*self._address(endpoint))
                await stop.wait()
                await self.audit.finish()
                await self._hand_over()
                await self._leave()
                for task in (*running, *self._spawned):
                    task.cancel()
        except (Exception, asyncio.CancelledError):
            # Connections stay open until the process ends. No request may be served by a log that
            # is being closed.
            self.replicas.resign_all()
            raise
        finally:
            self._tasks = None
            try:
                await self.audit.close()
            finally:
                await self._close_logs()

    async def _open_logs(self) -> None:
        now_ms = self._env.clock.wall_ms()
        root = self._directory.root
        await self._env.executor.run(lambda: clear_leftovers(self._env.disk, root))
        reports = await self._env.executor.run(
            lambda: self._directory.open_all(
                self._log_config, now_ms, cache_is_intact=self._record.intact_caches()
            )
        )
        for report in reports:
            for note in report.notes:
                _log.warning("%s: %s", report.directory, note)
            for damage in report.damage:
                _log.error(
                    "%s: offsets [%d, %d) are damaged and quarantined: %s",
                    report.directory,
                    damage.start_offset,
                    damage.end_offset,
                    damage.reason,
                )
        # A log that lacks a key has not been touched: what the proof says about it is still true.
        sound = {log.directory for log in self._directory} | {*self._directory.locked}
        self._logs_are_whole = all(
            report.directory in sound and not report.damage for report in reports
        )

    def _wire(self) -> Services:
        env, broker_id, spawn = self._env, self._config.broker_id, self._spawn
        coordinators = assemble(
            env,
            broker_id,
            self.cluster,
            self.controller,
            self.replicas,
            self.configs(),
            self._connector,
            spawn,
            self._create_share_state_topic,
        )
        ids, state = coordinators.producer_ids, coordinators.share_state
        self.shares.state, self.shares.settings_of = state, coordinators.groups.share_settings_of
        parts = self.cluster, self.controller, self.replicas, self.configs, self._connector
        topic = AuditTopic(env, broker_id, *parts)
        self.shares.letter_sender = LetterSender(env, broker_id, *parts, ids, spawn)
        LetterRecovery(env, self.cluster, self.replicas, self.shares, spawn)
        self.audit.write_to_topic(topic.write, topic.close)
        copies = LetterSender(env, broker_id, *parts, ids, spawn, COPIES_CLIENT)
        shared = self.cluster, self.replicas, self.configs
        delays = DelayLeader(env, *shared, state, copies, self._large_batches, spawn)
        return Services(
            env=self._env,
            config=self._config,
            counters=self.counters,
            cluster=self.cluster,
            authorization=self.authorization,
            tokens=self.tokens,
            quotas=self.quotas,
            audit=self.audit,
            controller=self.controller,
            replicas=self.replicas,
            directory=self._directory,
            **coordinators._asdict(),
            fetch_sessions=FetchSessions(
                1 + env.random.below(SESSION_ID_MAX),
                self.configs().int_value("max.incremental.fetch.session.cache.slots"),
            ),
            isr_proposals=IsrProposals(
                env, broker_id, self.replicas, self.controller, self.cluster, self.configs
            ),
            large_batches=self._large_batches,
            pending_leadership=PendingLeadership(broker_id, self.cluster, self.replicas),
            connector=self._connector,
            shares=self.shares,
            delays=delays,
            configs=self.configs,
            spawn=self._spawn,
            apis=self._dispatcher.apis,
            creating=set(),
            response_room=lambda: self.server.responses.room,
        )

    def _create_share_state_topic(self) -> str | None:
        return None if self._services is None else create_share_state_topic(self._services)

    def _repairs(self) -> tuple[Coroutine[Any, Any, None], ...]:
        parts = self._env, self._config.broker_id, self.cluster, self.replicas
        scrubber = Scrubber(*parts, lambda: self._config.scrub_bytes_per_s, self._connector)
        mending = ReplicaRepair(*parts, self.controller, self.fetchers)
        space = self._directory.space
        fullness = DiskFullGuard(self._env, self.replicas, self.controller, self.fetchers, space)
        failed_logs = FailedLogs(*parts, self.controller, self._note_failed_logs)
        return mending.run(), scrubber.run(), fullness.run(), failed_logs.run()

    def _note_failed_logs(self, is_void: bool) -> None:
        """Stores on disk what failed logs mean for the next start. Blocking."""
        if is_void:
            self._directory.doubt_cache()
            self._record.void()
        self._record.keep_unrecovered(self._directory.unrecovered)

    async def _join(self) -> Endpoint:
        config, record, membership = self._config, self._record, self.membership
        if self.listeners.logins is not None:
            await self.controller.commit_own(
                lambda image: create_decoy_secret(image, self._env.random.bytes)
            )
        await self.tokens.agree_on_secret(config.broker_id, self.controller)
        told = await self.listeners.open(self.server, _reachable(""))
        between = self.listeners.inter_broker(told)
        endpoint = Endpoint(between.host, between.port, config.rack or None, stored_endpoints(told))
        if self._services is not None:
            self._services.endpoint = endpoint
        run = self._env.executor.run
        cluster_id = await membership.found_cluster()
        proof = await run(lambda: record.read(cluster_id, logs_are_whole=self._logs_are_whole))
        await membership.register(endpoint, proof)
        self.tokens.require_agreed(config.broker_id)
        unrecovered = self._directory.unrecovered
        await run(lambda: record.begin(cluster_id, membership.broker_epoch, unrecovered))
        return endpoint

    def _address(self, endpoint: Endpoint) -> tuple[str, int]:
        """Returns the address that clients connect to: that of the first listener."""
        first = self._config.listeners.bound[0].name
        return endpoint.address(first) or (endpoint.host, endpoint.port)

    def _take_up(self) -> None:
        """Takes up the roles that the image gives this broker, under its current broker epoch."""
        self.replicas.broker_epoch = self.membership.broker_epoch
        # Changes that the image showed before the broker had this epoch could not take effect.
        for topic in self.cluster.image.topics.values():
            self.replicas.review(TopicChange(topic.name, topic, topic))

    async def _start_over(self, endpoint: Endpoint) -> None:
        """Resigns everything, registers again and takes up roles, after the session has expired."""
        self.replicas.resign_all()
        await self.membership.register(endpoint, self._record.again())
        self._take_up()

    async def _hand_over(self) -> None:
        """Hands leadership over before the stop. Returns at once if there is no other broker."""
        enabled = self.configs().bool_value("controlled.shutdown.enable")
        if not enabled or len(self.cluster.image.brokers) < 2:
            return
        try:
            async with asyncio.timeout(HAND_OVER_TIMEOUT_S):
                await self.membership.announce_stop()
                await self.controller.hand_over()
                await self.replicas.settled()
        except EXPECTED_ERRORS as error:
            _log.warning("could not hand over all partitions, stopping anyway: %r", error)

    async def _leave(self) -> None:
        with suppress(*EXPECTED_ERRORS):
            await self.membership.leave()
        self.replicas.resign_all()
        await self.server.stop(STOP_TIMEOUT_S)

    async def _close_logs(self) -> None:
        failed = any(log.failure is not None for log in self._directory)
        executor, threads = self._env.executor, self._config.flush_threads
        logs = list(self._directory)
        troubles = await close_logs(self._directory, executor, threads)
        await self._offset_keeper.note(logs)
        for trouble in troubles:
            _log.error("%s", trouble)
        if not failed and not troubles and not self.replicas.unopened:
            try:
                await executor.run(self._record.end)
            except OSError as error:
                _log.error(
                    "could not record the clean stop, so a start after a reboot is treated as one "
                    "after a crash: %s",
                    error,
                )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine in the task group, or closes it if the broker is ending."""
        try:
            task = self._tasks.create_task(work) if self._tasks is not None else None
        except RuntimeError:
            # The group cancels its tasks and takes no new ones, because one of them has failed.
            task = None
        if task is None:
            work.close()
            return
        self._spawned[task] = None
        task.add_done_callback(lambda done: self._spawned.pop(done, None))

    def _session_of(self, peer: Peer, identity: Identity | None = None) -> Session:
        if self._services is None:
            raise RuntimeError("the broker is not wired yet")
        who = identity or Identity(ANONYMOUS, peer.host)
        return BrokerSession(self._services, self._dispatcher, peer, who)


def _reachable(host: str) -> str:
    """Returns an address that clients on this machine can connect to.

    Clients on other machines need `advertised_host`."""
    return "127.0.0.1" if host in ("", "0.0.0.0", "::") else host  # noqa: S104 - compared only
