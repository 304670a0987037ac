"""Runs several brokers as child processes: restarts those that crash, and stops all together.

A child that exits with code 0 was stopped on purpose and stays down. A child that crashes is
restarted after a pause, which doubles with every crash in a row. If a child was never ready and its
exit code says that it cannot run at all (wrong config, port in use), the supervisor stops all
children. The line that the child printed says why.

The cluster is ready when every broker knows all the others. From then on a new topic can have as
many replicas as there are brokers.

Each child has its own session, so that Ctrl-C reaches only the supervisor. The supervisor asks the
children to stop, and kills those that do not. The standard input of a child is a pipe, which closes
when the supervisor ends for any reason; the child then stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.broker.config import BrokerConfig
from penstock.broker.peers.connection import PeerLost, PeerSecurity, connect_peer
from penstock.cli.broker_files import config_text
from penstock.cli.output import EXIT_UNUSABLE
from penstock.client.address import parse_bootstrap
from penstock.net.sockets import SocketNetwork
from penstock.ports import Clock
from penstock.runtime import SystemClock
from penstock.wire.messages import MetadataRequest, MetadataResponse

_READY: Final = "ready bootstrap="
_PROGRAM: Final = (sys.executable, "-m", "penstock.cli.main")
_METADATA_VERSION: Final = 12
_ACQUAINTED_S: Final = 10.0
_LOOK_AGAIN_S: Final = 0.02
_RESPONSE_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SuperviseConfig:
    restart_pause_s: float = 0.2
    restart_pause_max_s: float = 5.0
    steady_s: float = 30.0
    """If a child ran at least this long before a crash, the pause starts small again."""
    stop_timeout_s: float = 30.0
    """A broker with thousands of logs in use on a busy disk needs this long to close them."""


def run_brokers(
    directory: str,
    configs: Sequence[BrokerConfig],
    on_ready: Callable[[list[str]], None],
    security: PeerSecurity | None = None,
    before_stop: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Runs one process per config until stopped, and returns the exit code.

    `security` is how to connect to the brokers; None for plain text. `before_stop` is awaited
    before the brokers are asked to stop; a second signal cancels it.
    """
    commands = []
    for config in configs:
        path = f"{directory}/broker-{config.broker_id}.toml"
        Path(path).write_text(config_text(config), "utf-8")
        commands.append((*_PROGRAM, "broker", "--config", path, "--stop-with-stdin"))
    clock = SystemClock()
    supervisor = Supervisor(
        commands,
        clock,
        on_ready,
        acquainted=lambda addresses: _acquainted(addresses, clock, security),
        before_stop=before_stop,
    )
    return asyncio.run(supervisor.run())


async def _acquainted(
    addresses: Sequence[str], clock: Clock, security: PeerSecurity | None
) -> None:
    """Waits until every broker knows all brokers, for at most `_ACQUAINTED_S`."""
    try:
        async with asyncio.timeout(_ACQUAINTED_S):
            for address in addresses:
                while await known_to(address, security) < len(addresses):
                    await clock.sleep(_LOOK_AGAIN_S)
    except (PeerLost, TimeoutError) as error:
        why = str(error) or f"timed out after {_ACQUAINTED_S:g} s"
        _say(f"some brokers may not have joined the cluster yet ({why}); see penstock status")


async def known_to(address: str, security: PeerSecurity | None = None) -> int:
    """Returns the number of brokers that this one knows."""
    peer = await connect_peer(
        SocketNetwork(),
        parse_bootstrap(address)[0],
        client_id="penstock-up",
        timeout_s=_ACQUAINTED_S,
        response_bytes_max=_RESPONSE_BYTES_MAX,
        security=security,
    )
    try:
        answer = await peer.ask(
            MetadataRequest(), _METADATA_VERSION, MetadataResponse, _ACQUAINTED_S
        )
    finally:
        peer.close()
    return len(answer.brokers)


class _Child:
    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        self.command = command
        self.process: asyncio.subprocess.Process | None = None
        self.address: str | None = None
        """Where it listens. Set when it was ready for the first time."""


class Supervisor:
    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        clock: Clock,
        on_ready: Callable[[list[str]], None],
        config: SuperviseConfig | None = None,
        *,
        acquainted: Callable[[list[str]], Awaitable[None]] | None = None,
        before_stop: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._children = [_Child(number, command) for number, command in enumerate(commands)]
        self._clock = clock
        self._on_ready = on_ready
        self._acquainted = acquainted
        self._before_stop = before_stop
        self._first: asyncio.Future[None] | None = None
        """Waits for `before_stop`."""
        self._all_listen = asyncio.Event()
        self._config = config or SuperviseConfig()
        self._stopping = asyncio.Event()
        self._code = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = [tasks.create_task(self._watch(child)) for child in self._children]
                others = [
                    tasks.create_task(each) for each in (self._announce(), self._stop_children())
                ]
                await asyncio.wait(watching)
                for task in others:
                    task.cancel()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        return self._code

    def _on_signal(self) -> None:
        if self._first is not None and not self._first.done():
            self._first.cancel()
        elif self._stopping.is_set():
            # Another signal: the user does not want to wait.
            self._signal_all(signal.SIGKILL)
        self._stopping.set()

    def _signal_all(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.process is not None and child.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(number)

    async def _stop_children(self) -> None:
        await self._stopping.wait()
        if self._before_stop is not None:
            self._first = asyncio.ensure_future(self._before_stop())
            await asyncio.wait([self._first])
        self._signal_all(signal.SIGTERM)
        await self._clock.sleep(self._config.stop_timeout_s)
        self._signal_all(signal.SIGKILL)

    async def _watch(self, child: _Child) -> None:
        config = self._config
        pause_s = config.restart_pause_s
        while not self._stopping.is_set():
            started = self._clock.monotonic()
            code = await self._run(child)
            if self._stopping.is_set():
                return
            if code == 0:
                _say(f"broker {child.number} was stopped; the others keep running")
                return
            if child.address is None and code == EXIT_UNUSABLE:
                self._code = EXIT_UNUSABLE
                self._stopping.set()
                return
            if self._clock.monotonic() - started >= config.steady_s:
                pause_s = config.restart_pause_s
            _say(f"broker {child.number} {_ending(code)}; restarting it in {pause_s:g} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            pause_s = min(pause_s * 2, config.restart_pause_max_s)

    async def _run(self, child: _Child) -> int:
        """Runs the child once, and returns its exit code, which is negative for a signal."""
        process = child.process = await asyncio.create_subprocess_exec(
            *child.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        if self._stopping.is_set():
            process.terminate()
        assert process.stdout is not None
        while line := (await process.stdout.readline()).decode(errors="replace"):
            if line.startswith(_READY):
                child.address = line.removeprefix(_READY).strip()
                if all(each.address is not None for each in self._children):
                    self._all_listen.set()
            else:
                sys.stderr.write(line)
        return await process.wait()

    async def _announce(self) -> None:
        await self._all_listen.wait()
        addresses = [child.address for child in self._children if child.address is not None]
        if self._acquainted is not None:
            await self._acquainted(addresses)
        self._on_ready(addresses)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _say(text: str) -> None:
    sys.stderr.write(f"penstock: {text}\n")
