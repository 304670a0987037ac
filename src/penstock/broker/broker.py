"""One broker, wired: who is who, what starts before what, and what stops in which order.

Start: read the cluster's image, open the logs, listen, register, lead, serve. Clients that come in
between are told to try again. Stop: leave the cluster first, so that nobody is sent here any more;
answer who waits; then close the logs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from penstock.broker.cluster import ClusterView
from penstock.broker.config import BrokerConfig
from penstock.broker.controller import ControllerRuntime
from penstock.broker.coordinator import GroupCoordinator
from penstock.broker.dispatch import HANDLED, BrokerSession, Dispatcher
from penstock.broker.fetch_sessions import FetchSessions
from penstock.broker.hosted import log_config
from penstock.broker.maintenance import Maintenance
from penstock.broker.producer_ids import ProducerIds
from penstock.broker.replicas import Replicas
from penstock.broker.services import Services
from penstock.groups.config import GroupConfig
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.image import TopicChange
from penstock.net.config import ServerConfig
from penstock.net.server import Server
from penstock.net.session import Peer, Session
from penstock.ports import Env
from penstock.storage.config import LogConfig
from penstock.storage.directory import DirectoryConfig, LogDirectory

_log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 1.0
"""How long answers under way are waited for when the broker stops."""


class Broker:
    def __init__(self, env: Env, config: BrokerConfig) -> None:
        self._env = env
        self._config = config
        self.cluster = ClusterView(env.store)
        self._directory = LogDirectory(
            env.disk,
            f"{config.data_dir}/logs",
            DirectoryConfig(
                open_files_max=config.open_files_max,
                disk_reserve_bytes=config.disk_reserve_bytes,
            ),
        )
        self.controller = ControllerRuntime(
            env, self.cluster, config.broker_id, config.session_timeout_s
        )
        self.replicas = Replicas(
            env,
            config.broker_id,
            self.cluster,
            self._directory,
            self.configs,
            config.flush_threads,
        )
        self._dispatcher = Dispatcher()
        self.server = Server(env.network, env.clock, self._server_config(), self._new_session)
        self._tasks: asyncio.TaskGroup | None = None
        self._spawned: dict[asyncio.Task[None], None] = {}
        self._services: Services | None = None

    # Settings

    def configs(self) -> BrokerConfigs:
        """Broker settings as they are now."""
        image = self.cluster.image
        dynamic = image.broker_configs.get(self._config.broker_id, {})
        key = (image.default_broker_configs, dynamic)
        held = getattr(self, "_configs", None)
        if held is None or held[0] != key:
            static = {**self._own_settings(), **dict(self._config.kafka)}
            held = self._configs = (
                key,
                BrokerConfigs(
                    static=static,
                    dynamic_default=image.default_broker_configs,
                    dynamic=dynamic,
                ),
            )
        return held[1]

    def _own_settings(self) -> dict[str, str]:
        """What Kafka's tools look for under Kafka's names."""
        config = self._config
        listener = f"PLAINTEXT://{config.host}:{config.port}"
        advertised = config.advertised_host or _reachable(config.host)
        port = config.advertised_port or config.port
        return {
            "broker.id": str(config.broker_id),
            "node.id": str(config.broker_id),
            "listeners": listener,
            "advertised.listeners": f"PLAINTEXT://{advertised}:{port}",
            "log.dirs": self._directory.root,
            **({"broker.rack": config.rack} if config.rack else {}),
        }

    def _server_config(self) -> ServerConfig:
        config = self._config
        return ServerConfig(
            host=config.host,
            port=config.port,
            frame_bytes_max=config.request_bytes_max,
            request_bytes_max=config.bytes_in_flight_max,
            connections_max=config.connections_max,
            connections_per_address_max=config.connections_per_address_max,
            idle_timeout_s=config.idle_timeout_s,
        )

    def _log_config(self, topic: str, _: int) -> LogConfig:
        known = self.cluster.image.topics.get(topic)
        return log_config(self.configs().settings(known.configs if known is not None else {}))

    # Life

    async def run(self, stop: asyncio.Event, on_ready: Callable[[str, int], None]) -> None:
        """Serve until `stop` is set; `on_ready` is told the address when clients may come."""
        try:
            await self._run(stop, on_ready)
        except BaseExceptionGroup as failures:
            # One cause is the rule, and whoever started the broker wants to see just that.
            raise (_only(failures) or failures) from None

    async def _run(self, stop: asyncio.Event, on_ready: Callable[[str, int], None]) -> None:
        await self.cluster.load()
        await self._open_logs()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._services = self._wire()
                running = [
                    tasks.create_task(work)
                    for work in (
                        self.replicas.flusher.run(),
                        self.cluster.follow(),
                        self.replicas.run(),
                    )
                ]
                host, port = await self._join()
                running += [
                    tasks.create_task(work)
                    for work in (
                        self.controller.keep_alive(),
                        self.controller.watch_over(),
                        Maintenance(self._services).run(),
                    )
                ]
                on_ready(host, port)
                await stop.wait()
                await self._leave()
                for task in (*running, *self._spawned):
                    task.cancel()
        finally:
            self._tasks = None
            await self._env.executor.run(self._close_logs)

    async def _open_logs(self) -> None:
        now_ms = self._env.clock.wall_ms()
        reports = await self._env.executor.run(
            lambda: self._directory.open_all(self._log_config, now_ms)
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

    def _wire(self) -> Services:
        groups = GroupCoordinator(self._env, self.cluster.image, self._group_config(), self._spawn)
        self.replicas.on_leading(groups.on_leading)
        self.replicas.on_resigned(groups.on_resigned)
        self.cluster.listen(groups.on_change)
        return Services(
            env=self._env,
            config=self._config,
            cluster=self.cluster,
            controller=self.controller,
            replicas=self.replicas,
            directory=self._directory,
            groups=groups,
            producer_ids=ProducerIds(self.controller),
            fetch_sessions=FetchSessions(),
            configs=self.configs,
            spawn=self._spawn,
            apis=frozenset(HANDLED),
            creating=set(),
        )

    def _group_config(self) -> GroupConfig:
        configs = self.configs()
        return GroupConfig(
            initial_rebalance_delay_ms=configs.int_value("group.initial.rebalance.delay.ms"),
            session_timeout_min_ms=configs.int_value("group.min.session.timeout.ms"),
            session_timeout_max_ms=configs.int_value("group.max.session.timeout.ms"),
            group_size_max=configs.int_value("group.max.size"),
            offset_metadata_max=configs.int_value("offset.metadata.max.bytes"),
            offsets_retention_ms=configs.int_value("offsets.retention.minutes") * 60_000,
        )

    async def _join(self) -> tuple[str, int]:
        config = self._config
        await self.server.start()
        listening = self.server.address
        host = config.advertised_host or _reachable(config.host)
        port = config.advertised_port or listening[1]
        await self.controller.join(host, port, config.rack or None)
        self.replicas.broker_epoch = self.controller.broker_epoch
        # Everything the image showed before this broker had its epoch is looked at once more.
        for topic in self.cluster.image.topics.values():
            self.replicas.review(TopicChange(topic.name, topic, topic))
        await self.replicas.settled()
        return host, port

    async def _leave(self) -> None:
        with suppress(Exception):
            await self.controller.leave()
        self.replicas.resign_all()
        await self.server.stop(STOP_TIMEOUT_S)

    def _close_logs(self) -> None:
        for trouble in self._directory.close():
            _log.error("%s", trouble)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._tasks is None:
            work.close()
        else:
            task = self._tasks.create_task(work)
            self._spawned[task] = None
            task.add_done_callback(lambda done: self._spawned.pop(done, None))

    def _new_session(self, peer: Peer) -> Session:
        if self._services is None:
            raise RuntimeError("the broker is not wired yet")
        return BrokerSession(self._services, self._dispatcher, peer)


def _reachable(host: str) -> str:
    """What clients on this machine can connect to; other machines need `advertised_host`."""
    return "127.0.0.1" if host in ("", "0.0.0.0", "::") else host  # noqa: S104 - compared only


def _only(failures: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """The one exception a group holds, however deep; None if there are more."""
    if len(failures.exceptions) != 1:
        return None
    inner = failures.exceptions[0]
    return _only(inner) if isinstance(inner, BaseExceptionGroup) else inner
