"""A broker with a full disk: its data directory is a small file system that a test fills up.

The mount needs root. The broker must not lose acknowledged records, writes must continue on the
other brokers, and when space is free again it must return to the ISR by itself.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .broker_processes import BrokerProcesses, Node, pause
from .ledger import Verdict
from .loaded_cluster import LoadedCluster, close_loaded, open_loaded

SPACE_BYTES = 96 << 20
RESERVE_BYTES = 8 << 20


def why_not() -> str:
    """Returns why nothing can be mounted here, or an empty string."""
    return "" if os.geteuid() == 0 else "mounting a small file system needs root"


@contextlib.contextmanager
def small_disk(node: Node) -> Iterator[None]:
    """Mounts a file system of a few megabytes as the broker's data directory."""
    node.data.mkdir(parents=True)
    options = f"size={SPACE_BYTES}"
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(node.data)], check=True, timeout=30
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(node.data)], check=True, timeout=30)


@contextlib.contextmanager
def filled(node: Node) -> Iterator[None]:
    """Fills the disk completely."""
    filler = node.data / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    try:
        yield
    finally:
        filler.unlink()


def run(directory: Path, store: str) -> Verdict:
    keys = {"disk_reserve_bytes": str(RESERVE_BYTES)}
    fleet = BrokerProcesses(
        directory, 3, store, {"replica.lag.time.max.ms": 4000}, broker_keys=keys
    )
    loaded: LoadedCluster | None = None
    try:
        with small_disk(fleet.nodes[1]):
            loaded = open_loaded(fleet)
            with filled(fleet.nodes[1]):
                loaded.progress()
                pause(6.0)
                loaded.progress()
            loaded.settle()
            verdict = close_loaded(loaded)
            fleet.close()
            return verdict
    finally:
        if loaded is not None:
            loaded.workload.stop()
        fleet.close()
