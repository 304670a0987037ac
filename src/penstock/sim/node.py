"""The machines of a simulated cluster, and the processes that run on them.

A node is a machine: an address, a disk, a wall clock. A process runs on it, and each start creates
a new one. Nothing of a killed process runs again, although its objects are kept until the run ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from random import Random  # noqa: TID251 - only for the type: instances are seeded
from typing import Any, Final, Protocol, TypeVar

from penstock.broker.broker import Broker
from penstock.client.environment import ClientEnv
from penstock.ports import Env
from penstock.security.listeners import LISTENERS
from penstock.sim.clock import SimClock
from penstock.sim.disk.disk import SimDisk
from penstock.sim.executor import DiskSpeed, SimExecutor
from penstock.sim.key_service import KeyPort, KeyService
from penstock.sim.loop import SimLoop
from penstock.sim.network.network import NodeNetwork, SimNetwork
from penstock.sim.process import Process, SimTask
from penstock.sim.random_streams import SimRandom
from penstock.sim.store import SimStore, StoreModel
from penstock.sim.trace import Trace
from penstock.sim.world_config import WorldConfig
from penstock.stores.errors import StoreError, StoreFull
from penstock.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")
PORT: Final = 9092
_HASHING: Final = DiskSpeed(delay_min_s=0.002, stall_chance=0.0)
"""How long clients hash a password. They use threads for nothing else."""

DOWN: Final = "down"
STARTING: Final = "starting"
READY: Final = "ready"
STOPPING: Final = "stopping"


class Surroundings(Protocol):
    """What a node uses of the world around it."""

    config: WorldConfig
    loop: SimLoop
    network: SimNetwork
    store: StoreModel
    keys: KeyService | None
    trace: Trace

    @property
    def now(self) -> float:
        """Virtual seconds since the run began."""

    def draws(self, name: str) -> Random:
        """Returns the random stream for one purpose."""

    def tell(self, text: str) -> None:
        """Adds a line to the event log."""

    def count(self, name: str, times: int = 1) -> None: ...

    def blame(self, what: str, error: BaseException | None) -> None:
        """Records a failure that must not happen."""


class Node:
    """What brokers and clients have in common."""

    def __init__(self, world: Surroundings, name: str, host: str) -> None:
        self._world = world
        self._loop = world.loop
        self.name = name
        self.host = host
        self.machine = world.network.add_machine(name, host)
        self.life = -1
        """How many times it was restarted. -1 before its first start."""
        self.process: Process | None = None
        self._died: asyncio.Future[None] | None = None
        self._slow_s = 0.0
        self._clock = SimClock(world.loop)
        self._random = SimRandom(world.draws(f"node {name}"))
        self._network = NodeNetwork(world.network, self.machine)

    def wall_ms(self) -> int:
        """Returns what its wall clock shows."""
        return self._clock.wall_ms()

    def wall_range(self, begun_ms: float, ended_ms: float) -> tuple[int, int]:
        """Returns the lowest and the highest time that its wall clock has shown meanwhile."""
        return self._clock.wall_range(begun_ms, ended_ms)

    @property
    def skew_ms(self) -> int:
        """How many milliseconds its wall clock is ahead."""
        return self._clock.skew_ms

    @skew_ms.setter
    def skew_ms(self, skew_ms: int) -> None:
        if skew_ms != self._clock.skew_ms:
            self._clock.skew_ms = skew_ms

    @property
    def is_up(self) -> bool:
        return self.process is not None

    @property
    def is_frozen(self) -> bool:
        return self.process is not None and self.process.frozen

    @property
    def slow_s(self) -> float:
        """How long each of its steps takes, in virtual seconds."""
        return self._slow_s

    @slow_s.setter
    def slow_s(self, seconds: float) -> None:
        self._slow_s = seconds
        if self.process is not None:
            self.process.slow_s = seconds

    def freeze(self) -> None:
        """Like SIGSTOP: its connections stay, the machine buffers what arrives, and no
        code runs."""
        if self.process is not None:
            self._world.tell(f"{self.name} freezes")
            self._loop.freeze(self.process)

    def resume(self) -> None:
        if self.process is not None and self.process.frozen:
            self._world.tell(f"{self.name} resumes")
            self._loop.resume(self.process)

    def kill(self) -> None:
        """Like SIGKILL: nothing of the process runs again, and its machine closes
        its connections."""
        if self.process is not None:
            self._world.tell(f"{self.name} is killed")
            self._end_process(self.process)

    def _begin_process(self) -> Process:
        if self.process is not None:
            raise RuntimeError(f"{self.name} is already running: kill or stop it first")
        self.life += 1
        if not self.machine.powered:
            self.machine.on_power()
        self.process = self._loop.new_process(self.name)
        self.process.slow_s = self._slow_s
        self._died = self._loop.create_future()
        return self.process

    def _end_process(self, process: Process, *, power: bool = False) -> None:
        self._loop.kill(process)
        if power:
            self.machine.on_power_loss(process)
        else:
            self.machine.on_killed(process)
        self.process = None
        if self._died is not None and not self._died.done():
            self._died.set_result(None)


class ClientNode(Node):
    """A machine that runs any coroutines: mostly clients."""

    def __init__(self, world: Surroundings, name: str, host: str) -> None:
        super().__init__(world, name, host)
        self._executor_draws = world.draws(f"executor {name}")
        self.start()

    def start(self) -> None:
        """Starts a new process, after the last one was killed."""
        process = self._begin_process()
        executor = SimExecutor(self._loop, process, lambda: _HASHING, self._executor_draws)
        self.env = ClientEnv(self._network, self._clock, self._random, executor)

    def spawn(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Runs a coroutine in the node's process. If the process is killed, the task never ends."""
        if self.process is None:
            work.close()
            raise RuntimeError(f"{self.name} is down: start it first")
        return self._loop.create_task(work, name=name, context=self.process.context.copy())

    async def join(self, *tasks: asyncio.Task[Any]) -> bool:
        """Waits until all tasks are done or their process is dead. Returns whether all are done."""
        died = self._died
        assert died is not None
        while pending := [task for task in tasks if not task.done()]:
            await asyncio.wait([*pending, died], return_when=asyncio.FIRST_COMPLETED)
            if died.done():
                break
        return all(task.done() for task in tasks)


@dataclass(frozen=True, slots=True)
class End:
    """A broker that exited by itself."""

    at_s: float
    error: BaseException | None


class BrokerNode(Node):
    """A machine with a broker, and the supervisor that restarts the broker when it exits
    by itself."""

    def __init__(self, world: Surroundings, broker_id: int, host: str) -> None:
        super().__init__(world, f"broker-{broker_id}", host)
        settings = world.config
        self.id = broker_id
        self.port = PORT
        self.config = replace(
            settings.broker,
            broker_id=broker_id,
            host=host,
            port=PORT,
            data_dir="/data",
            rack=f"rack-{broker_id % settings.racks}" if settings.racks else "",
            kafka=(*settings.broker.kafka, *_at_host(settings.kafka, host)),
        )
        self.disk = SimDisk(
            world.draws(f"crashes {self.name}"),
            world.draws(f"disk faults {self.name}"),
            capacity_bytes=settings.capacity_bytes,
            now_ms=self._clock.wall_ms,
        )
        self.speed = settings.disk
        self.broker: Broker | None = None
        self.state = DOWN
        self.supervised = True
        self.boots = 0
        """How often the machine has lost power. Each time, unsynced data may have been lost."""
        self.ends: list[End] = []
        self._executor: SimExecutor | None = None
        self._keys: KeyPort | None = None
        self._executor_draws = world.draws(f"executor {self.name}")
        self._pause_draws = world.draws(f"supervisor {self.name}")
        self._stop = asyncio.Event()
        self._is_ready = asyncio.Event()
        self._is_down = asyncio.Event()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        """Starts the broker with the contents of its disk. `ready` waits for it."""
        process = self._begin_process()
        self.state = STARTING
        self._is_down.clear()
        self._stop = asyncio.Event()
        keys = self._keys = None if self._world.keys is None else self._world.keys.port(self.name)
        self._executor = SimExecutor(
            self._loop,
            process,
            lambda: self.speed,
            self._executor_draws,
            (lambda: 0.0) if keys is None else keys.take_waited_s,
        )
        self._world.tell(f"{self.name} starts")
        task = self._loop.create_task(
            self._live(process, self._stop),
            name=f"{self.name}/{self.life}",
            context=process.context.copy(),
        )
        task.add_done_callback(self._on_end, context=self._loop.world.context)

    async def _live(self, process: Process, stop: asyncio.Event) -> None:
        store = SimStore(self._world.store, self.name, process)
        assert self._executor is not None
        env = Env(
            clock=self._clock,
            random=self._random,
            disk=self.disk,
            network=self._network,
            executor=self._executor,
            store=store,
            boot_id=lambda: f"boot {self.boots}",
            slicing=self._world.config.slicing,
            keys=self._keys,
        )
        self.broker = Broker(env, self.config)
        try:
            await self.broker.run(stop, self._on_ready)
        finally:
            await store.close()

    def _on_ready(self, host: str, port: int) -> None:
        self._world.tell(f"{self.name} is ready")
        self.state = READY
        self._is_ready.set()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        assert isinstance(task, SimTask)
        if self.process is not task.process:
            return
        error = task.exception()
        asked = self._stop.is_set()
        self._end_process(task.process)
        if error is None and asked:
            self._world.tell(f"{self.name} has stopped")
            return
        self._world.tell(f"{self.name} ended by itself")
        self._world.trace.show(f"{self.name} ended with {error!r}")
        self._world.count("broker_ended")
        self.ends.append(End(self._world.now, error))
        if not _is_expected(error):
            self._world.blame(f"{self.name} ended", error)
        if self.supervised:
            least, most = self._world.config.restart_pause_s
            pause_s = least + (most - least) * self._pause_draws.random()
            self._loop.call_later(
                pause_s, self._start_again, self.life, context=self._loop.world.context
            )

    def _start_again(self, life: int) -> None:
        if self.process is None and self.life == life and self.supervised:
            self.start()

    def _end_process(self, process: Process, *, power: bool = False) -> None:
        if self._executor is not None:
            # Before the disk changes: the process did this work while it was alive.
            self._executor.on_killed()
            self._executor = None
        super()._end_process(process, power=power)
        if power:
            self.disk.power_loss()
        else:
            self.disk.kill()
        self.broker = None
        self.state = DOWN
        self._is_ready.clear()
        self._is_down.set()

    async def ready(self, timeout_s: float = 30.0) -> None:
        async with asyncio.timeout(timeout_s):
            await self._is_ready.wait()

    async def stop(self, timeout_s: float = 60.0) -> None:
        """Stops the broker as SIGTERM does. Returns when the process is gone."""
        process = self.process
        if process is None:
            return
        self._world.tell(f"{self.name} is asked to stop")
        self.state = STOPPING
        self._is_ready.clear()
        self._loop.call_soon(self._stop.set, context=process.context)
        async with asyncio.timeout(timeout_s):
            await self._is_down.wait()

    async def restart(self, timeout_s: float = 60.0) -> None:
        """Stops the broker cleanly and starts it again."""
        await self.stop(timeout_s)
        if self.process is None:
            self.start()
        await self.ready(timeout_s)

    def power_loss(self) -> None:
        """Turns the machine off. Its disk keeps what the crash model allows. Peers are
        not notified."""
        self._world.tell(f"{self.name} loses power")
        self.boots += 1
        if self.process is not None:
            self._end_process(self.process, power=True)
        elif self.machine.powered:
            self.machine.powered = False
            self.disk.power_loss()

    def stall_disk(self, seconds: float) -> None:
        """Makes work on threads take at least this long."""
        if self._executor is not None:
            self._executor.stalled_until = self._loop.now + seconds


def _at_host(settings: tuple[tuple[str, str], ...], host: str) -> tuple[tuple[str, str], ...]:
    """Returns the settings of the broker at this address: `listeners` are at `{host}`."""
    return tuple(
        (name, value.format(host=host) if name == LISTENERS else value) for name, value in settings
    )


def _is_expected(error: BaseException | None) -> bool:
    """Returns whether a broker may end with this error: its lease expired, or the store did
    not answer."""
    if isinstance(error, StoreFull):
        return False  # This is temporary, and a broker can wait until it passes.
    if isinstance(error, KafkaError):
        return error.code == ErrorCode.REQUEST_TIMED_OUT
    if isinstance(error, BaseExceptionGroup):
        return all(_is_expected(each) for each in error.exceptions)
    if isinstance(error, RuntimeError):
        return "lease expired" in str(error)
    return isinstance(error, StoreError | TimeoutError)
