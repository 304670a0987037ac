"""Health checks: whether the broker is live, and whether it is ready.

A broker is *live* if its event loop answers. It is *ready* if it serves clients, its disk accepts
writes, the metadata store answers and has its registration, and its replicas are in sync. So a
rolling restart that waits until each broker is ready never takes away a second replica of a
partition. The report names each problem and what to do about it.

A disk or a store that hangs must not make the health check hang, so each has `PATIENCE_S` to
answer. Neither is checked again before its last check has ended, nor more often than every
`FRESH_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.context import Services
from penstock.metadata.keys import CLUSTER_KEY
from penstock.ports import Env
from penstock.storage.files import write_all

PATIENCE_S: Final = 2.0
FRESH_S: Final = 2.0
PROBE_NAME: Final = "penstock-health"
_NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    ok: bool
    what: str
    advice: str = ""
    """What to do about it. Empty if the check is ok."""


class Probe:
    """A check that may hang. Only one runs at a time, and its result is reused for `FRESH_S`."""

    def __init__(self, env: Env, ask: Callable[[], Awaitable[None]]) -> None:
        self._env = env
        self._ask = ask
        self._asking: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._failure: str | None = None

    async def failure(self) -> str | None:
        """Returns what went wrong, or None."""
        now = self._env.clock.monotonic()
        if self._asking is None and (not self._asked_at or now - self._asked_at >= FRESH_S):
            self._asked_at = now
            self._asking = asyncio.create_task(self._run())
        asking = self._asking
        if asking is None:
            return self._failure
        left_s = max(0.0, self._asked_at + PATIENCE_S - now)
        done, _ = await asyncio.wait([asking], timeout=left_s)
        if not done:
            return f"no answer for {self._env.clock.monotonic() - self._asked_at:.1f} s"
        if self._asking is asking:
            self._asking = None
        return self._failure

    async def _run(self) -> None:
        try:
            await self._ask()
        except Exception as error:  # noqa: BLE001 - any error is a result of the check
            self._failure = str(error) or type(error).__name__
        else:
            self._failure = None

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])


class Health:
    def __init__(self, env: Env, config: BrokerConfig, broker: Broker, stop: asyncio.Event) -> None:
        self._env = env
        self._config = config
        self._broker = broker
        self._stop = stop
        self._disk = Probe(env, self._write)
        self._store = Probe(env, self._read_store)
        self.is_serving = False
        """Set when the broker begins to serve clients."""

    async def report(self) -> tuple[bool, dict[str, Any]]:
        """Returns whether the broker is ready, and the results of all checks."""
        findings = [self._check_serving()]
        services = self._broker.services
        if services is not None:
            findings += [
                await self._check_disk(services),
                self._check_logs(services),
                await self._check_store(),
                self._check_controller(services),
                self._check_fetchers(services),
            ]
        ready = all(finding.ok for finding in findings)
        return ready, {
            "ready": ready,
            "broker": self._config.broker_id,
            "checks": [asdict(finding) for finding in findings],
        }

    async def close(self) -> None:
        await self._disk.close()
        await self._store.close()

    def _check_serving(self) -> Finding:
        if self._stop.is_set():
            return Finding("serving", False, "the broker is stopping", "Use another broker.")
        if self.is_serving:
            return Finding("serving", True, "the broker serves clients")
        return Finding(
            "serving",
            False,
            "the broker is starting: it is opening its logs and joining the cluster",
            "Wait. After a crash it reads everything that was not synced, which takes a while.",
        )

    async def _check_disk(self, services: Services) -> Finding:
        directory = services.directory
        failure = await self._disk.failure()
        if failure is not None:
            advice = "Check the system log; free space or repair the disk, then restart the broker."
            return Finding("disk", False, f"cannot write to {directory.root}: {failure}", advice)
        if directory.space.lacks_room:
            advice = "Free disk space, or lower retention; appends then resume automatically."
            return Finding("disk", False, directory.space.explain(), advice)
        return Finding("disk", True, f"{directory.root} is writable")

    def _check_logs(self, services: Services) -> Finding:
        offline = services.replicas.offline
        if not offline:
            return Finding("logs", True, "no log has failed")
        (topic, index), reason = next(iter(offline.items()))
        return Finding(
            "logs",
            False,
            f"{_counted(len(offline), 'log')} failed, for example {topic}-{index}: {reason}",
            "Repair the disk and restart the broker.",
        )

    async def _check_store(self) -> Finding:
        failure = await self._store.failure()
        membership = self._broker.membership
        if failure is not None:
            return Finding(
                "store",
                False,
                f"the metadata store does not answer: {failure}",
                "Check that etcd has a majority and can be reached, or that the SQLite file can be "
                "written. Clients can still produce and fetch.",
            )
        full = self._env.store.full
        if full is not None:
            return Finding(
                "store",
                False,
                f"the metadata store refuses writes: {full}",
                "Free space for the store. Clients can still produce and fetch; topics, configs "
                "and leaders cannot change until then.",
            )
        if membership.may_be_over:
            return Finding(
                "store",
                False,
                "this broker's session was not renewed within its timeout",
                "Check why the store is slow; the broker registers again automatically.",
            )
        if not membership.is_registered:
            return Finding(
                "store",
                False,
                "this broker is not registered in the cluster",
                "It registers again automatically; if it does not, check its log.",
            )
        return Finding("store", True, "the metadata store answers, and this broker is registered")

    def _check_controller(self, services: Services) -> Finding:
        controller = services.controller
        if controller.failing is None:
            return Finding(
                "controller", True, "no task of the controller has failed on this broker"
            )
        return Finding(
            "controller",
            False,
            f"a task of the controller is failing: {controller.failing}",
            "It is retried every 30 s; check the broker's log, and report the error.",
        )

    def _check_fetchers(self, services: Services) -> Finding:
        """Checks the ISRs in the metadata, because they are what the leaders have confirmed."""
        image, broker_id = services.image, self._config.broker_id
        behind = []
        for hosted in services.replicas:
            partition = image.partition(hosted.topic, hosted.index)
            if (
                partition is not None
                and broker_id in partition.replicas
                and broker_id not in partition.isr
                and broker_id not in partition.adding_replicas
            ):
                behind.append(f"{hosted.topic}-{hosted.index}")
        if not behind:
            return Finding("fetchers", True, "all replicas on this broker are in sync")
        named = ", ".join(behind[:_NAMED_MAX]) + (", ..." if len(behind) > _NAMED_MAX else "")
        return Finding(
            "fetchers",
            False,
            f"{_counted(len(behind), 'replica')} not in sync: {named}",
            "Wait until they have caught up. If they make no progress (penstock status), check "
            "that this broker can reach their leaders.",
        )

    async def _write(self) -> None:
        root = f"{self._config.data_dir}/{PROBE_NAME}"
        await self._env.executor.run(lambda: self._write_to(root))

    def _write_to(self, path: str) -> None:
        file = self._env.disk.open(path, create=True)
        try:
            write_all(file, b"a broker writes here to see that it can\n", 0)
            file.fsync()
        finally:
            file.close()

    async def _read_store(self) -> None:
        await self._env.store.get(CLUSTER_KEY)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
