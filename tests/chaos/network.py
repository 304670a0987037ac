"""Brokers in separate network namespaces, with connections that can be cut.

Run it as root inside a new namespace (`unshare --net`), which becomes the router and hosts the
clients. Each broker and the store have their own namespace, behind a pair of virtual interfaces. A
cut is a routing rule that silently drops packets from one address to another, in one or both
directions. It behaves as a broken network does: no side is notified, connections stay half open,
and packets in flight arrive after the cut is healed. Clients can always reach every broker: a
broker that lost the others must not acknowledge records that the others will never have.

Run: `unshare --net env PYTHONPATH=tests python -m chaos.network --store etcd`
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from stores.zk_server import ZooKeeperServer

from .broker_processes import BrokerProcesses, Node, pause, wait_for
from .loaded_cluster import PROGRESS_S, SYNC_S, LoadedCluster, close_loaded, open_loaded
from .workload import TOPIC

LAG_MAX_MS = 4_000
STORE = 9
"""The number of the store's namespace; brokers use their ids."""
SESSION_S = 9.0
TESTS = Path(__file__).parents[1]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)


def why_not() -> str:
    """Returns why namespaces cannot be used here, or an empty string."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "ip and unshare are not installed"
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "probe", "type", "veth"],
        capture_output=True,
        check=False,
        timeout=30,
    )
    return "" if tried.returncode == 0 else "this system refuses virtual networks"


class Wires:
    """Network namespaces connected to the one of this process."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._names = {number: f"penstock-{os.getpid()}-{number}" for number in numbers}
        self._cuts: list[tuple[int, int]] = []

    def open(self) -> None:
        ip("link", "set", "lo", "up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for number, name in self._names.items():
            ip("netns", "add", name)
            ip(
                "link",
                "add",
                f"wire{number}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                name,
            )
            ip("addr", "add", f"10.99.{number}.1/24", "dev", f"wire{number}")
            ip("link", "set", f"wire{number}", "up")
            ip("-n", name, "addr", "add", f"{self.host(number)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "route", "add", "default", "via", f"10.99.{number}.1")

    def close(self) -> None:
        for name in self._names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def host(self, number: int) -> str:
        return f"10.99.{number}.2"

    def inside(self, number: int) -> tuple[str, ...]:
        """Returns the command prefix that runs a command in that namespace."""
        return ("ip", "netns", "exec", self._names[number])

    def cut_one_way(self, source: int, target: int) -> None:
        self._rule("add", source, target)
        self._cuts.append((source, target))

    def cut(self, one: int, other: int) -> None:
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def heal(self) -> None:
        while self._cuts:
            self._rule("del", *self._cuts.pop())

    def _rule(self, what: str, source: int, target: int) -> None:
        ip("rule", what, "from", self.host(source), "to", self.host(target), "type", "blackhole")


@contextmanager
def etcd_at(wires: Wires, directory: Path) -> Iterator[str]:
    """Runs an etcd in the store's namespace, and yields its address."""
    host = wires.host(STORE)
    binary = shutil.which("etcd")
    assert binary is not None, "etcd is not installed: `make tools` as root installs it"
    with (directory / "etcd.log").open("ab") as log:
        process = subprocess.Popen(
            [
                *wires.inside(STORE),
                binary,
                f"--data-dir={directory / 'etcd'}",
                f"--listen-client-urls=http://{host}:2379",
                f"--advertise-client-urls=http://{host}:2379",
                "--log-level=warn",
            ],
            stdout=log,
            stderr=log,
        )

    def is_healthy() -> bool:
        try:
            with urllib.request.urlopen(f"http://{host}:2379/health", timeout=1) as answer:
                return bool(json.load(answer)["health"] == "true")
        except OSError:
            return False

    try:
        wait_for("etcd is healthy", is_healthy, 30)
        yield f"etcd://{host}:2379/chaos"
    finally:
        process.kill()
        process.wait()


@contextmanager
def zookeeper_at(wires: Wires, directory: Path) -> Iterator[str]:
    """Runs a ZooKeeper in the store's namespace, and yields its address."""
    server = ZooKeeperServer(1, directory, wires.host(STORE), wires.inside(STORE))
    try:
        server.start([server])
        wait_for("ZooKeeper serves", lambda: bool(server.mode), 60)
        yield f"zk://{server.endpoint}/chaos"
    finally:
        server.kill()


@contextmanager
def store_at(wires: Wires, directory: Path, store: str) -> Iterator[str]:
    """Runs the server of a store, and yields its address; an empty one for SQLite."""
    if store == "sqlite":
        yield ""
        return
    with (etcd_at if store == "etcd" else zookeeper_at)(wires, directory) as address:
        yield address


class Cutter:
    """The faults that cut connections."""

    def __init__(self, loaded: LoadedCluster, wires: Wires) -> None:
        self.loaded = loaded
        self.wires = wires

    def follower_from_leader(self) -> None:
        """The follower leaves the ISR, writes continue, and it comes back."""
        leader, follower = self.loaded.victim("leader"), self.loaded.victim("follower")
        self.wires.cut(leader.broker_id, follower.broker_id)
        self._wait_out_of_sync(follower)
        self.loaded.progress()

    def leader_mute_to_follower(self) -> None:
        """Packets from the leader to the follower are dropped; the other direction works."""
        leader, follower = self.loaded.victim("leader"), self.loaded.victim("follower")
        self.wires.cut_one_way(leader.broker_id, follower.broker_id)
        self._wait_out_of_sync(follower)
        self.loaded.progress()

    def leader_from_store(self) -> None:
        """The leader loses its session, other brokers lead, and it may not acknowledge any more."""
        self._lose_lead(self.loaded.victim("leader"), [STORE])

    def controller_from_store(self) -> None:
        """Another controller takes over, and later decisions of the old one have no effect."""
        controller = self.loaded.victim("controller")
        self.wires.cut(controller.broker_id, STORE)
        wait_for(
            "another controller",
            lambda: self._seen_by_others(controller) not in (controller.broker_id, -1),
            PROGRESS_S,
        )
        self.loaded.progress()

    def leader_from_all_brokers(self) -> None:
        """The leader reaches only store and clients: fewer than min.insync.replicas are left."""
        leader = self.loaded.victim("leader")
        for other in self._others(leader):
            self.wires.cut(leader.broker_id, other)
        pause(SESSION_S + LAG_MAX_MS / 1000)

    def leader_from_everybody(self) -> None:
        """The leader reaches only its clients."""
        leader = self.loaded.victim("leader")
        self._lose_lead(leader, [STORE, *self._others(leader)])

    def _others(self, node: Node) -> list[int]:
        return [each for each in self.loaded.fleet.nodes if each != node.broker_id]

    def _seen_by_others(self, node: Node) -> int:
        return self.loaded.fleet.metadata(of=self._others(node)[0]).controller_id

    def _lose_lead(self, leader: Node, cut_from: Sequence[int]) -> None:
        for other in cut_from:
            self.wires.cut(leader.broker_id, other)
        witness = self._others(leader)[0]

        def is_replaced() -> bool:
            found = self.loaded.fleet.partitions(TOPIC, of=witness)
            return all(p.leader_id not in (leader.broker_id, -1) for p in found.values())

        wait_for("others lead", is_replaced, PROGRESS_S)
        self.loaded.progress()

    def _wait_out_of_sync(self, follower: Node) -> None:
        def is_out() -> bool:
            return follower.broker_id not in self.loaded.fleet.partitions(TOPIC)[0].isr_nodes

        wait_for("the follower left the in-sync replicas", is_out, PROGRESS_S)


WITH_STORE = ("leader_from_store", "controller_from_store", "leader_from_everybody")
"""These cut the connection to the store; a SQLite file has none."""
CUTS = ("follower_from_leader", "leader_mute_to_follower", "leader_from_all_brokers", *WITH_STORE)


def fleet_on(wires: Wires, directory: Path, store: str, address: str) -> BrokerProcesses:
    hosts = [wires.host(number) for number in range(3)]
    fleet = BrokerProcesses(
        directory,
        3,
        store,
        {"replica.lag.time.max.ms": LAG_MAX_MS},
        store_address=address,
        hosts=hosts,
    )
    for node in fleet.nodes.values():
        node.command_prefix = wires.inside(node.broker_id)
    return fleet


@contextmanager
def on_wires(directory: Path, store: str) -> Iterator[tuple[BrokerProcesses, Wires]]:
    """Yields three brokers, not started, each in its own namespace."""
    with ExitStack() as stack:
        wires = Wires([0, 1, 2, STORE])
        stack.callback(wires.close)
        wires.open()
        address = stack.enter_context(store_at(wires, directory, store))
        fleet = fleet_on(wires, directory / "brokers", store, address)
        stack.callback(fleet.close)
        yield fleet, wires


def run(directory: Path, store: str, cuts: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Makes the cuts one after the other under load. Returns the complaints."""
    with on_wires(directory, store) as (fleet, wires):
        loaded = open_loaded(fleet)
        try:
            for name in cuts:
                try:
                    getattr(Cutter(loaded, wires), name)()
                finally:
                    wires.heal()
                took_s = fleet.wait_in_sync(TOPIC, SYNC_S)
                loaded.settle()
                say(f"{store} {name}: in sync {took_s:.1f} s after the cut was healed")
            return close_loaded(loaded).complaints
        finally:
            loaded.workload.stop()


def run_apart(module: str, *arguments: str, timeout_s: float = 600) -> list[str]:
    """Runs a module as a process in a new namespace. Returns its complaints."""
    result = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    try:
        return list(json.loads(result.stdout.splitlines()[-1])["complaints"])
    except (IndexError, ValueError):
        return [f"{module} {' '.join(arguments)} broke: {result.stderr[-3000:]}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", choices=("sqlite", "etcd", "zk"), default="etcd")
    parser.add_argument("--cut", choices=CUTS, action="append", help="only these")
    options = parser.parse_args()
    cuts = options.cut or [c for c in CUTS if options.store != "sqlite" or c not in WITH_STORE]
    with tempfile.TemporaryDirectory(prefix="penstock-network-") as directory:
        complaints = run(
            Path(directory),
            options.store,
            cuts,
            lambda text: print(text, file=sys.stderr, flush=True),
        )
    print(json.dumps({"cuts": cuts, "complaints": complaints}))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
