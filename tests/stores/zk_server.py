"""Real ZooKeeper servers for tests, on free loopback ports. They can be killed, frozen and
restarted."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.ports import MetadataStore
from penstock.runtime import SystemClock, SystemRandom, Threads
from penstock.stores.zk_address import ZooKeeperAddress
from penstock.stores.zk_session import ZooKeeperConfig
from penstock.stores.zookeeper import ZooKeeperStore
from penstock.testing.ports import free_port
from penstock.testing.slowness import patient

from .store_bench import StoreBench

START_TIMEOUT_S = 150.0
_taken: set[int] = set()
"""Ports of members in this process, which may be down for a while."""
JARS = Path("/usr/share/java")
ZOOKEEPER_JAR = JARS / "zookeeper.jar"
PATIENT = ZooKeeperConfig(request_timeout_s=300.0, attempt_timeout_s=30.0, session_timeout_s=60.0)
"""For calls that must succeed however busy the machine is."""
_THREADS = Threads(4)


def require_zookeeper() -> None:
    if shutil.which("java") is None or not ZOOKEEPER_JAR.exists():
        pytest.skip("ZooKeeper is not installed: `make tools` as root installs Debian's zookeeper")


class ZooKeeperServer:
    """One member: a process, its ports and its data."""

    def __init__(
        self,
        number: int,
        directory: Path,
        host: str = "127.0.0.1",
        command_prefix: Sequence[str] = (),
    ) -> None:
        self.number = number
        self.directory = directory / f"m{number}"
        self.host = host
        self.command_prefix = tuple(command_prefix)
        self.client_port, self.peer_port, self.election_port = _free_ports(3)
        self.endpoint = f"{host}:{self.client_port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, members: Sequence[ZooKeeperServer], settings: Sequence[str] = ()) -> None:
        require_zookeeper()
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{self.number}\n")
        lines = [
            f"dataDir={data}",
            f"clientPort={self.client_port}",
            f"clientPortAddress={self.host}",
            "tickTime=500",
            "initLimit=40",
            "syncLimit=10",
            "minSessionTimeout=500",
            "maxSessionTimeout=60000",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "standaloneEnabled=true",
            "4lw.commands.whitelist=srvr",
            *settings,
        ]
        if len(members) > 1:
            lines += [
                f"server.{each.number}=127.0.0.1:{each.peer_port}:{each.election_port}"
                for each in members
            ]
        config = self.directory / "zoo.cfg"
        config.write_text("\n".join(lines) + "\n")
        # Appended, so that a restart continues the log.
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.command_prefix,
                    *("java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                    *("-Dzookeeper.forceSync=no", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
                    *("-cp", _class_path()),
                    *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)),
                ],
                stdout=log,
                stderr=log,
            )

    def says(self) -> str:
        """Returns the answer to ZooKeeper's command `srvr`; empty if there is none."""
        try:
            address = (self.host, self.client_port)
            with socket.create_connection(address, timeout=5.0) as connection:
                connection.sendall(b"srvr")
                answer = b""
                while chunk := connection.recv(4096):
                    answer += chunk
        except OSError:
            return ""
        return answer.decode()

    @property
    def mode(self) -> str:
        """Returns leader, follower or standalone; empty if it serves nobody."""
        for line in self.says().splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return ""

    def freeze(self) -> None:
        """Stops the process, and returns when all of its threads stand still."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=patient(START_TIMEOUT_S))
            self.process = None


class ZooKeeperEnsemble:
    def __init__(self, size: int, settings: Sequence[str] = ()) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-zk-"))
        self.settings = tuple(settings)
        self.members = [ZooKeeperServer(number + 1, self.directory) for number in range(size)]

    def address(self, namespace: str = "", *, first: int = 0) -> ZooKeeperAddress:
        """Returns the address with member `first` at the start of the list, where handles begin."""
        members = self.members[first:] + self.members[:first]
        return ZooKeeperAddress(tuple(member.endpoint for member in members), namespace)

    def start(self) -> None:
        for member in self.members:
            if member.process is None:
                member.start(self.members, self.settings)
        self.wait_healthy()

    def wait_healthy(self) -> None:
        """Waits until every member serves."""
        deadline = time.monotonic() + patient(START_TIMEOUT_S)
        for member in self.members:
            while not member.mode:
                assert time.monotonic() < deadline, f"member {member.number} does not serve"
                time.sleep(0.1)

    def leader(self) -> ZooKeeperServer:
        """Returns the present leader, according to the members themselves."""
        deadline = time.monotonic() + patient(START_TIMEOUT_S)
        while time.monotonic() < deadline:
            for member in self.members:
                if member.process is not None and member.mode in ("leader", "standalone"):
                    return member
            time.sleep(0.1)
        raise AssertionError("there is no leader")

    def heal(self) -> None:
        """Makes every member run again."""
        for member in self.members:
            member.thaw()
        self.start()

    def close(self) -> None:
        for member in self.members:
            member.kill()
        shutil.rmtree(self.directory)


class First(SystemRandom):
    """Begins with the first member of the list."""

    def below(self, _bound: int) -> int:
        return 0


class LeaseClock(SystemClock):
    """A clock that a test moves forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


async def open_store(
    address: ZooKeeperAddress,
    config: ZooKeeperConfig = PATIENT,
    clock: SystemClock | None = None,
) -> ZooKeeperStore:
    return await ZooKeeperStore.open(address, clock or SystemClock(), First(), _THREADS, config)


class ZooKeeperBench(StoreBench):
    """A separate namespace in a ZooKeeper that many tests share."""

    made = 0

    def __init__(self, ensemble: ZooKeeperEnsemble) -> None:
        self.ensemble = ensemble
        ZooKeeperBench.made += 1
        self.namespace = f"/bench-{ZooKeeperBench.made}"
        self.clock = LeaseClock()
        self._open: list[ZooKeeperStore] = []

    async def open(self) -> ZooKeeperStore:
        store = await open_store(self.ensemble.address(self.namespace), clock=self.clock)
        self._open.append(store)
        return store

    async def advance(self, seconds: float) -> None:
        """Moves the clock of the handles. Leases depend on no other. Between small steps, every
        handle looks for ended leases, as it does when nothing delays it."""
        step_s = 0.05
        for _ in range(round(seconds / step_s)):
            await self._everyone_looks()
            self.clock.ahead_s += step_s
        await self._everyone_looks()

    async def _everyone_looks(self) -> None:
        stores = [store for store in self._open if not store.is_closed]
        await asyncio.gather(*(store.look_for_ended_leases() for store in stores))

    async def forget_history(self, store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        await store.snapshots.make(revisions_kept=0)

    def fresh(self) -> ZooKeeperBench:
        return ZooKeeperBench(self.ensemble)

    def close(self) -> None:
        self._open.clear()


def _class_path() -> str:
    """Returns what Debian's zookeeper needs: its own manifest lacks what TLS and logs take."""
    jars = [ZOOKEEPER_JAR, JARS / "slf4j-simple.jar", *sorted(JARS.glob("netty-*.jar"))]
    return ":".join(map(str, jars))


def _free_ports(count: int) -> list[int]:
    random, found = SystemRandom(), set[int]()
    while len(found) < count:
        found |= {free_port(random)} - _taken
    _taken.update(found)
    return sorted(found)
