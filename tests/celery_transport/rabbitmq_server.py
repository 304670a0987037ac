"""A RabbitMQ server of its own for a test: Debian's package, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_transport.task_workers import wait_until
from penstock.runtime import SystemRandom
from penstock.testing.ports import free_port

SCRIPTS = Path("/usr/lib/rabbitmq/bin")


@contextmanager
def rabbitmq(folder: Path) -> Iterator[str]:
    """Runs a server, and yields its URL. Skips the test if RabbitMQ is not installed."""
    if not (SCRIPTS / "rabbitmq-server").exists():
        pytest.skip(
            "rabbitmq-server is not installed: `make tools` as root installs Debian's package"
        )
    random = SystemRandom()
    port, distribution, names = (free_port(random) for _ in range(3))
    environment = _environment(folder, port, distribution, names)
    log = folder / "rabbitmq.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [str(SCRIPTS / "rabbitmq-server")],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:

        def answers() -> bool:
            assert server.poll() is None, log.read_text("utf-8", "replace")
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_until(answers, "RabbitMQ listens")
        yield f"amqp://guest:guest@127.0.0.1:{port}//"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
        # Erlang's port mapper stays when the server is gone.
        epmd = shutil.which("epmd")
        if epmd is not None:
            subprocess.run([epmd, "-kill"], env=environment, capture_output=True, check=False)


def _environment(folder: Path, port: int, distribution: int, names: int) -> dict[str, str]:
    config = folder / "rabbitmq.conf"
    config.write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\nlog.console = true\nlog.file = false\n", "utf-8"
    )
    (folder / "plugins").write_text("[].\n", "utf-8")
    return {
        **os.environ,
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(names),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"penstock-{port}@localhost",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_CONFIG_FILE": str(config),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_PID_FILE": str(folder / "rabbitmq.pid"),
    }
