"""Simulates a whole cluster in one process: a seed, an event loop, nodes, and a scenario.

    async def scenario(world: World) -> int:
        await world.start_brokers()
        ...

    outcome = run_world(seed, scenario, WorldConfig(brokers=3))

A run depends on nothing but the seed, the configuration and the code: the same three give the same
`trace_hash`, in this process or another. (The iteration order of sets of strings depends on
PYTHONHASHSEED: see `reexec_with_fixed_hashes`.) An error inside a run becomes part of its outcome;
`run_world` does not raise it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random  # noqa: TID251 - only for the type: instances are seeded
from typing import Final, Generic, TypeVar

from penstock.client.connection import _software_version
from penstock.sim.failures import describe
from penstock.sim.key_service import KeyService
from penstock.sim.loop import START_S, SimLoop
from penstock.sim.network.network import SimNetwork
from penstock.sim.node import BrokerNode, ClientNode, Node
from penstock.sim.process import PROCESS
from penstock.sim.random_streams import RandomStreams
from penstock.sim.sandbox import sandbox
from penstock.sim.store import StoreModel
from penstock.sim.trace import Trace
from penstock.sim.world_config import WorldConfig

T = TypeVar("T")
Scenario = Callable[["World"], Awaitable[T]]
_FIXED_HASHES: Final = "0"


@dataclass(frozen=True, slots=True)
class LogLine:
    at_s: float
    process: str
    level: int
    logger: str
    text: str


@dataclass(slots=True)
class Outcome(Generic[T]):
    seed: int
    value: T | None = None
    error: BaseException | None = None
    trace_hash: str = ""
    steps: int = 0
    virtual_s: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)
    trace_lines: list[str] = field(default_factory=list)
    hashes_fixed: bool = False
    step_list: list[tuple[float, int, str]] = field(default_factory=list)
    """With `keep_steps`: the time, process and callback of each step, to find where two
    runs diverge."""


class Unexpected(Exception):
    """Something failed that the scenario did not handle."""


class World:
    """A running simulation: the loop, the network, the store, and all brokers and clients."""

    def __init__(self, seed: int, config: WorldConfig) -> None:
        self.seed = seed
        self.config = config
        self._streams = RandomStreams(seed)
        self.loop = SimLoop(
            self._streams.stream("schedule"),
            gc_every_steps=config.gc_every_steps,
            steps_per_instant_max=config.steps_per_instant_max,
        )
        self.loop.horizon_s = START_S + config.virtual_s_max
        loop = self.loop
        self.trace = loop.trace = Trace(
            lambda: loop.now - START_S, keep=config.keep_trace, steps=config.keep_steps
        )
        self.counters: dict[str, int] = {}
        self.logs: list[LogLine] = []
        self.unexpected = self.loop.unexpected
        """Failures that no code handled. They become the outcome's error."""
        self.network = SimNetwork(self.loop, config.network, self.draws("network"))
        self.keys = KeyService(config.keys) if config.keys else None
        self.store = StoreModel(self.loop, config.store, self.draws("store"))
        self.nodes: dict[str, Node] = {}
        self.brokers: list[BrokerNode] = []
        self.clients: dict[str, ClientNode] = {}
        for _ in range(config.brokers):
            self.add_broker()

    @property
    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self.loop.now - START_S

    def draws(self, name: str) -> Random:
        """Returns the random stream for one purpose."""
        return self._streams.stream(name)

    # Nodes

    @property
    def bootstrap(self) -> list[str]:
        return [broker.address for broker in self.brokers]

    def add_broker(self) -> BrokerNode:
        """Adds a machine with a broker that is not started yet."""
        broker_id = len(self.brokers)
        node = BrokerNode(self, broker_id, f"10.0.0.{broker_id + 1}")
        self.brokers.append(node)
        self.nodes[node.name] = node
        return node

    def client(self, name: str) -> ClientNode:
        """Returns the client with that name. Creates it on first use."""
        found = self.clients.get(name)
        if found is None:
            found = ClientNode(self, name, f"10.0.1.{len(self.clients) + 1}")
            self.clients[name] = self.nodes[name] = found
        return found

    async def start_brokers(self, timeout_s: float = 30.0) -> None:
        """Starts the brokers that are down, and waits until all brokers are ready."""
        for broker in self.brokers:
            if not broker.is_up:
                broker.start()
        for broker in self.brokers:
            await broker.ready(timeout_s)

    async def stop_brokers(self, timeout_s: float = 60.0) -> None:
        """Stops all brokers cleanly and at the same time."""
        async with asyncio.TaskGroup() as stopping:
            for broker in self.brokers:
                stopping.create_task(broker.stop(timeout_s))

    # Time

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(
        self,
        holds: Callable[[], bool],
        timeout_s: float,
        poll_s: float = 0.05,
        what: str = "a condition",
    ) -> None:
        """Waits until the condition holds. Raises TimeoutError if it does not hold in time."""
        deadline = self.loop.now + timeout_s
        while not holds():
            if self.loop.now >= deadline:
                raise TimeoutError(f"waited {timeout_s:g} virtual seconds in vain: {what}")
            await asyncio.sleep(poll_s)

    async def until_none_left(
        self, left: Callable[[], int], timeout_s: float, patience_s: float, poll_s: float = 0.25
    ) -> None:
        """Waits until nothing is left. Raises TimeoutError if something is left after `timeout_s`,
        and there has not been less of it for `patience_s`."""
        fewest = left()
        deadline = self.loop.now + timeout_s
        while fewest:
            if self.loop.now >= deadline:
                raise TimeoutError(f"{fewest} are left, as many as {patience_s:g} s ago")
            await asyncio.sleep(poll_s)
            if (now_left := left()) < fewest:
                fewest = now_left
                deadline = max(deadline, self.loop.now + patience_s)

    def on_step(self, callback: Callable[[], None], every: int = 1) -> None:
        """Calls the callback after every `every` steps, while no code of any node runs."""
        self.loop.on_step(callback, every)

    # Event log and counters

    def tell(self, text: str) -> None:
        """Adds a line to the event log, which is part of the trace."""
        self.trace.tell(text)

    def count(self, name: str, times: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + times

    def blame(self, what: str, error: BaseException | None) -> None:
        """Records a failure that must not happen."""
        if error is None:
            self.unexpected.append(what)
        else:
            said = "".join(traceback.format_exception(error))
            self.unexpected.append(f"{what}: {describe(error)}\n{said}")


class _Tap(logging.Handler):
    """Collects the log lines of product code. A logged exception counts as a bug."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        world = self._world
        process = PROCESS.get(world.loop.world).name
        text = record.getMessage()
        world.logs.append(LogLine(world.now, process, record.levelno, record.name, text))
        world.trace.show(f"{process}: {record.levelname} {text}")
        if record.exc_info is not None and record.exc_info[1] is not None:
            world.blame(f"{process} logged {text}", record.exc_info[1])


@contextmanager
def _tapped(world: World) -> Iterator[None]:
    logger = logging.getLogger("penstock")
    level, propagates, tap = logger.level, logger.propagate, _Tap(world)
    logger.addHandler(tap)
    logger.setLevel(logging.INFO if world.config.keep_trace else logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(tap)
        logger.setLevel(level)
        logger.propagate = propagates


def run_world(
    seed: int,
    scenario: Scenario[T],
    config: WorldConfig = WorldConfig(),  # noqa: B008 - WorldConfig is frozen
) -> Outcome[T]:
    """Runs a scenario to its end, in a new world."""
    outcome: Outcome[T] = Outcome(seed, hashes_fixed=_hashes_are_fixed())
    _software_version()  # Reads a file on its first call in a process: not during the run.
    world = World(seed, config)

    async def main() -> None:
        outcome.value = await scenario(world)

    with sandbox() as tripped, _tapped(world):
        try:
            world.loop.run(main())
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the outcome of the run
            outcome.error = error
        outcome.trace_hash = world.trace.hexdigest()
        outcome.steps = world.loop.steps
        outcome.virtual_s = world.now
        outcome.step_list = world.trace.steps or []
        world.unexpected.extend(tripped)
        if outcome.error is None and world.unexpected:
            outcome.error = Unexpected("\n".join(world.unexpected))
        outcome.counters = _counters(world)
        outcome.trace_lines = list(world.trace.lines)
        world.loop.close()
    return outcome


def _counters(world: World) -> dict[str, int]:
    """Returns the world's counters, and the sums of the counters of all brokers' disks."""
    counters = dict(world.counters)
    for broker in world.brokers:
        for name, times in broker.disk.counters.items():
            if times:
                counters[f"disk_{name}"] = counters.get(f"disk_{name}", 0) + times
    return counters


def _hashes_are_fixed() -> bool:
    return os.environ.get("PYTHONHASHSEED") == _FIXED_HASHES


def reexec_with_fixed_hashes() -> None:
    """Restarts this process with fixed string hashes, unless it has them already."""
    if not _hashes_are_fixed():
        environment = {**os.environ, "PYTHONHASHSEED": _FIXED_HASHES}
        # The arguments are those of this process.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606
