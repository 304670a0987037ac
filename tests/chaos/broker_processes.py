"""A cluster of broker processes that can be stopped, killed, frozen and restarted one by one.

Each broker is `penstock broker --config` with its own port and data directory. The brokers share a
SQLite file, a real etcd or a real ZooKeeper. Leaders and in-sync replicas are read from a running
broker over a new connection, so no client library's cache is involved.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compat.cluster import PENSTOCK, free_ports
from penstock.testing.ask import ask
from penstock.testing.slowness import patient
from penstock.wire.messages import MetadataRequest, MetadataResponse
from stores.etcd_server import EtcdCluster
from stores.zk_server import ZooKeeperEnsemble

READY_S = 150.0
STOP_S = 150.0
METADATA_VERSION = 12
PROGRAM = (sys.executable, "-m", "penstock.cli.main")
ETCD_OPTIONS = ("--heartbeat-interval=50", "--election-timeout=500")
SETTINGS: Mapping[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 3,
}
_pause = threading.Event()


class NotInTime(AssertionError):
    """A condition did not become true in time."""


def wait_for(what: str, true: Callable[[], bool], within_s: float, every_s: float = 0.05) -> float:
    """Waits until the condition is true. Returns how long that took, in seconds."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > patient(within_s):
            raise NotInTime(f"not within {within_s:g} s: {what}")
        _pause.wait(every_s)
    return time.monotonic() - began


def pause(seconds: float) -> None:
    """Lets the load run for a while."""
    _pause.wait(seconds)


class Node:
    """One broker: its files and address, and its current or last process."""

    def __init__(self, broker_id: int, directory: Path, address: str) -> None:
        self.broker_id = broker_id
        self.config = directory / f"broker-{broker_id}.toml"
        self.data = directory / f"broker-{broker_id}"
        self.output = directory / f"broker-{broker_id}.log"
        self.address = address
        self.command_prefix: tuple[str, ...] = ()
        self.process: subprocess.Popen[bytes] | None = None
        self.is_frozen = False
        self._read_from = 0

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def answers(self) -> bool:
        return self.is_running and not self.is_frozen

    def launch(self) -> None:
        assert not self.is_running, f"broker {self.broker_id} runs already"
        self._read_from = self.output.stat().st_size if self.output.exists() else 0
        command = [*self.command_prefix, *PROGRAM, "broker", "--config", str(self.config)]
        # Standard input is a pipe, so the brokers stop when the driver dies for any reason.
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                [*command, "--stop-with-stdin"], stdin=subprocess.PIPE, stdout=out, stderr=out
            )

    def wait_ready(self, within_s: float = READY_S) -> None:
        def is_ready() -> bool:
            with self.output.open("rb") as file:
                file.seek(self._read_from)
                text = file.read()
            if b"ready bootstrap=" in text:
                return True
            if not self.is_running:
                raise NotInTime(f"broker {self.broker_id} ended: {self.said()}")
            return False

        wait_for(f"broker {self.broker_id} is ready", is_ready, within_s)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def freeze(self) -> None:
        """Returns when all threads of the process are stopped."""
        assert self.process is not None
        self.send(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
        self.is_frozen = True

    def thaw(self) -> None:
        self.send(signal.SIGCONT)
        self.is_frozen = False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self._reap(STOP_S)
            self.is_frozen = False

    def stop(self) -> float:
        """Sends SIGTERM and waits for the end. Returns how long that took, in seconds."""
        began = time.monotonic()
        self.send(signal.SIGTERM)
        code = self._reap(STOP_S)
        assert code == 0, f"broker {self.broker_id} stopped with code {code}: {self.said()}"
        return time.monotonic() - began

    def _reap(self, within_s: float) -> int:
        assert self.process is not None
        try:
            return self.process.wait(patient(within_s))
        except subprocess.TimeoutExpired:
            raise NotInTime(f"broker {self.broker_id} does not end: {self.said()}") from None
        finally:
            if self.process.stdin is not None:
                self.process.stdin.close()

    def said(self, lines: int = 15) -> str:
        """Returns the end of what the broker has written since its last start."""
        if not self.output.exists():
            return "(nothing)"
        with self.output.open("rb") as file:
            file.seek(self._read_from)
            text = file.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:]) or "(nothing)"


class BrokerProcesses:
    """Brokers 0 to count - 1 and their metadata store. More brokers may join."""

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        store: str = "sqlite",
        settings: Mapping[str, object] | None = None,
        *,
        store_address: str = "",
        hosts: Sequence[str] = (),
        broker_keys: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.kind = store
        self.settings = {**SETTINGS, **(settings or {})}
        self.broker_keys = dict(broker_keys or {})
        self.store_server: EtcdCluster | ZooKeeperEnsemble | None = None
        self.store = store_address or str(directory / "metadata.db")
        if store == "etcd" and not store_address:
            self.store_server = EtcdCluster(1, ETCD_OPTIONS)
        elif store == "zk" and not store_address:
            self.store_server = ZooKeeperEnsemble(1)
        self.nodes: dict[int, Node] = {}
        if hosts:
            self._addresses = [f"{host}:9092" for host in hosts]
        else:
            first = free_ports(count + 1)
            self._addresses = [f"127.0.0.1:{first + i}" for i in range(count + 1)]
        for broker_id in range(count):
            self.add(broker_id)

    def add(self, broker_id: int) -> Node:
        """Adds a broker without starting it."""
        node = Node(broker_id, self.directory, self._addresses[broker_id])
        self.nodes[broker_id] = node
        return node

    def start(self) -> str:
        """Starts all brokers. Returns the bootstrap addresses."""
        if self.store_server is not None:
            self.store_server.start()
            self.store = str(self.store_server.address("/chaos"))
        for node in self.nodes.values():
            self.write_config(node)
            node.launch()
        for node in self.nodes.values():
            node.wait_ready()
        return self.bootstrap

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    def write_config(self, node: Node) -> None:
        host, _, port = node.address.rpartition(":")
        lines = [
            f"broker_id = {node.broker_id}",
            f'host = "{host}"',
            f"port = {port}",
            f'data_dir = "{node.data}"',
            f'store = "{self.store}"',
            *(f"{key} = {value}" for key, value in self.broker_keys.items()),
            "[kafka]",
            *(f'"{key}" = {json.dumps(value)}' for key, value in self.settings.items()),
        ]
        node.config.write_text("\n".join(lines) + "\n")

    def restart(self, broker_id: int) -> None:
        node = self.nodes[broker_id]
        self.write_config(node)
        node.launch()
        node.wait_ready()

    def close(self) -> None:
        """Kills every process, whatever state it is in."""
        for node in self.nodes.values():
            node.kill()
        if self.store_server is not None:
            self.store_server.close()
            self.store_server = None

    # -- the state that the cluster reports --------------------------------------------------------

    def metadata(self, topic: str | None = None, of: int | None = None) -> MetadataResponse:
        """Returns the metadata of one broker: the given one, or the first that answers."""
        wanted = [] if topic is None else [MetadataRequest.Topic(name=topic)]
        request = MetadataRequest(wanted, allow_auto_topic_creation=False)
        nodes = [n for n in self.nodes.values() if n.answers and of in (None, n.broker_id)]
        for node in nodes:
            try:
                return ask(node.address, request, MetadataResponse, METADATA_VERSION, patient(5.0))
            except OSError:
                continue
        raise NotInTime(f"none of the brokers {[n.broker_id for n in nodes]} answers")

    def partitions(
        self, topic: str, of: int | None = None
    ) -> dict[int, MetadataResponse.Partition]:
        (found,) = self.metadata(topic, of).topics
        return {partition.partition_index: partition for partition in found.partitions}

    def controller(self) -> int:
        return self.metadata().controller_id

    def wait_in_sync(self, topic: str, within_s: float = 60.0, count: int | None = None) -> float:
        """Waits until every partition has a leader, and all (or `count`) replicas in sync."""

        def is_so() -> bool:
            return all(
                p.leader_id >= 0 and len(p.isr_nodes) == (count or len(p.replica_nodes))
                for p in self.partitions(topic).values()
            )

        try:
            return wait_for(f"replicas of {topic} are in sync", is_so, within_s)
        except NotInTime as late:
            shown = {i: (p.leader_id, p.isr_nodes) for i, p in self.partitions(topic).items()}
            raise NotInTime(f"{late}: leader and in-sync replicas are {shown}") from None

    # -- the log files -----------------------------------------------------------------------------

    def find(self, topic: str, partition: int, number: int) -> list[str]:
        """Returns where a number is stored on disk: it may be lost there, or on the way to readers.

        If it is stored twice with the same producer epoch and sequence, the broker took a retry for
        a new batch. If these differ, the producer gave it new ones.
        """
        found = []
        for node in self.nodes.values():
            batch: dict[str, Any] = {}
            for line in dump(node.data / "logs" / f"{topic}-{partition}"):
                if line["type"] == "batch":
                    batch = line
                elif line["type"] == "record" and int(line["value"]) == number:
                    found.append(
                        f"broker {node.broker_id} holds {number} at {line['offset']}, in a batch "
                        f"of epoch {batch['producer_epoch']} from sequence "
                        f"{batch['base_sequence']} on, by the leader of epoch "
                        f"{batch['leader_epoch']}"
                    )
        return found or [f"no broker holds {number} in {topic}-{partition}"]

    def differences(self, topic: str, partition: int) -> list[str]:
        """Returns where the logs of the replicas differ. All brokers must be stopped."""
        logs: dict[int, bytes] = {}
        for node in self.nodes.values():
            directory = node.data / "logs" / f"{topic}-{partition}"
            if directory.is_dir():
                segments = sorted(directory.glob("*.log"))
                logs[node.broker_id] = b"".join(path.read_bytes() for path in segments)
        first, *others = sorted(logs)
        return [
            f"{topic}-{partition} differs at byte {_differ_at(logs[first], logs[other])} between "
            f"broker {first} ({len(logs[first])} bytes) and {other} ({len(logs[other])} bytes)"
            for other in others
            if logs[other] != logs[first]
        ]

    def complaints(self) -> list[str]:
        """Returns lines of the brokers' output that show a bug in a broker."""
        signs = ("Traceback", "InvariantViolated", "never retrieved", "never awaited")
        found = []
        for node in self.nodes.values():
            text = node.output.read_text(errors="replace") if node.output.exists() else ""
            for line in text.splitlines():
                if any(sign in line for sign in signs):
                    found.append(f"broker {node.broker_id} wrote: {line}")
        return found


def dump(directory: Path) -> list[dict[str, Any]]:
    if not directory.is_dir():
        return []
    result = subprocess.run(
        [PENSTOCK, "log", "dump", str(directory), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(120),
    )
    return [json.loads(line) for line in result.stdout.splitlines()]


def _differ_at(one: bytes, other: bytes) -> int:
    for position in range(0, max(len(one), len(other)), 4096):
        left, right = one[position : position + 4096], other[position : position + 4096]
        if left != right:
            pairs = enumerate(zip(left, right, strict=False))
            within = next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))
            return position + within
    return min(len(one), len(other))
