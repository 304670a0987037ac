"""Brokers that run as processes and use the store that a test gives them."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock import Admin
from penstock.testing.slowness import patient

PROGRAM = (sys.executable, "-m", "penstock.cli.main")
PATIENCE_S = 150


def write_config(folder: Path, store: str, broker_id: int = 0, session_timeout_s: int = 6) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "broker.toml"
    path.write_text(
        f'broker_id = {broker_id}\nport = 0\ndata_dir = "{folder / "data"}"\nstore = "{store}"\n'
        f"session_timeout_s = {patient(session_timeout_s)}\n"
    )
    return path


@contextmanager
def broker(config: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Yields the bootstrap address and the process, which is stopped cleanly if it still runs."""
    command = [*PROGRAM, "broker", "--config", str(config)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            limit_s = patient(PATIENCE_S)
            assert select.select([process.stdout], [], [], limit_s)[0], "it is not ready in time"
            line = process.stdout.readline()
            assert line.startswith("ready bootstrap="), (line, process.poll())
            yield line.strip().removeprefix("ready bootstrap="), process
        finally:
            process.terminate()
            process.communicate(timeout=patient(PATIENCE_S))


def topics_of(bootstrap: str) -> dict[str, int]:
    """Returns the names of the topics and their numbers of partitions."""
    with Admin(bootstrap) as admin:
        return {topic.name: len(topic.partitions) for topic in admin.list_topics()}
