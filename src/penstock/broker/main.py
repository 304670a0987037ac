"""Runs a broker in this process until a signal stops it."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from penstock.broker.access.token_secret import with_token_secret
from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig, ConfigError
from penstock.broker.dispatch import load_handlers
from penstock.broker.log_format import configure_logging
from penstock.broker.metrics.observability import Watch, watching
from penstock.metadata.configs import BrokerConfigs
from penstock.net.memory import keep_large_blocks
from penstock.net.sockets import SocketNetwork
from penstock.ports import Clock, Env, Executor, KeyProvider, MetadataStore, Random
from penstock.runtime import SystemClock, SystemRandom, Threads, system_boot_id
from penstock.storage.disk import OsDisk
from penstock.storage.errors import StorageError
from penstock.storage.key_providers import key_provider
from penstock.stores import opening

_STORE_THREADS: Final = 4
_log = logging.getLogger(__name__)

OnReady = Callable[[list[str]], None]
BeforeStop = Callable[[], Awaitable[None]]


def run_broker(
    config: BrokerConfig,
    on_ready: OnReady | None = None,
    before_stop: BeforeStop | None = None,
) -> int:
    """Serves until SIGTERM or SIGINT. Returns the exit code.

    After the first signal it waits for `before_stop`; a second one cancels that.
    """
    config = with_token_secret(config)
    configure_logging(config)
    if config.without_effect:
        _log.warning("settings without effect in Penstock: %s", ", ".join(config.without_effect))
    keep_large_blocks()
    os.makedirs(config.data_dir, exist_ok=True)
    with locked(config.data_dir), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(config, on_ready, before_stop))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - optional: everything works without it, only slower
    except ImportError:
        return None
    return uvloop.new_event_loop


class _Stopping:
    """Handles the signals that stop this process."""

    def __init__(self, stop: asyncio.Event, first: BeforeStop | None) -> None:
        self._stop = stop
        self._first = first
        self._task: asyncio.Task[None] | None = None

    def on_signal(self) -> None:
        if self._first is None:
            self._stop.set()
        elif self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._wait(self._first))
        else:
            self._task.cancel()

    async def _wait(self, first: BeforeStop) -> None:
        try:
            await first()
        finally:
            self._stop.set()


async def _serve(
    config: BrokerConfig, on_ready: OnReady | None, before_stop: BeforeStop | None
) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    stopping = _Stopping(stop, before_stop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.on_signal)
    threads = Threads(config.flush_threads)
    # Separate threads: leases must be renewed even while all other threads wait for a slow disk.
    store_threads = Threads(_STORE_THREADS)
    # One thread: many handshakes must not take the processors from the clients that are connected.
    handshake_threads = Threads(1)
    # One thread: regular expressions of consumer groups must not delay the syncing of logs.
    matching_threads = Threads(1)
    clock, random = SystemClock(), SystemRandom()
    store = await open_store(config, clock, random, store_threads)
    loading: list[asyncio.Task[None]] = []

    def ready(watch: Watch, host: str, port: int) -> None:
        # Objects that were created at the start stay as long as the broker runs, and a request's
        # objects are freed by reference counting. Looking for cycles in either costs a tenth of the
        # broker's time.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        write_runtime_file(config, host, port, watch.address, watch.scheme)
        watch.health.is_serving = True
        if on_ready is not None:
            on_ready([f"{host}:{port}"])
        loading.append(loop.create_task(threads.run(load_handlers)))

    try:
        env = Env(
            clock=clock,
            random=random,
            disk=OsDisk(),
            network=SocketNetwork(),
            executor=threads,
            store=store,
            boot_id=system_boot_id,
            keys=open_keys(config, random),
            handshakes=handshake_threads,
            matching=matching_threads,
        )
        broker = Broker(env, config)
        async with watching(env, config, broker, stop) as watch:
            await broker.run(stop, partial(ready, watch))
    finally:
        await asyncio.gather(*loading)
        await store.close()
        store_threads.close()
        handshake_threads.close()
        matching_threads.close()
        threads.close()
    return 0


def open_keys(config: BrokerConfig, random: Random) -> KeyProvider | None:
    """Returns the provider of the keys of encrypted topics; None if there is none."""
    settings = BrokerConfigs(static=dict(config.kafka))
    try:
        return key_provider(
            settings.text_value("encryption.key.provider"),
            random,
            token_file=settings.text_value("encryption.vault.token.file"),
            ca_file=settings.text_value("encryption.vault.ca.file"),
        )
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error


async def open_store(
    config: BrokerConfig, clock: Clock, random: Random, executor: Executor
) -> MetadataStore:
    """Opens the metadata store that the configuration names.

    Refuses a part of a copy: brokers would find no cluster there, and found a new one."""
    try:
        store = await opening.open_store(config.store_path, clock, random, executor)
    except opening.ExtraMissing as error:
        raise ConfigError(f"store: {error}") from error
    try:
        if await store.get(opening.MARK) is None:
            return store
    except BaseException:
        await store.close()
        raise
    await store.close()
    raise ConfigError(
        f"store: {opening.shown(config.store_path)} holds an incomplete copy: wait "
        "until `penstock store copy` ends; if it was interrupted, empty the store and copy again"
    )


@contextmanager
def locked(data_dir: str) -> Iterator[None]:
    """Locks a data directory, so that only one broker uses it."""
    path = f"{data_dir}/.lock"
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageError(
                f"{data_dir} is in use by another broker: stop it, or choose another --data"
            ) from error
        yield


def write_runtime_file(
    config: BrokerConfig,
    host: str,
    port: int,
    metrics: tuple[str, int] | None,
    metrics_scheme: str = "http",
) -> None:
    """Writes `broker.json`: id, process and addresses of this broker, for tools on the same
    machine."""
    about: dict[str, object] = {
        "id": config.broker_id,
        "pid": os.getpid(),
        "host": host,
        "port": port,
    }
    if metrics is not None:
        about["metrics"] = f"{metrics[0]}:{metrics[1]}"
        about["metrics_scheme"] = metrics_scheme
    with open(f"{config.data_dir}/broker.json", "w") as file:
        json.dump(about, file)
