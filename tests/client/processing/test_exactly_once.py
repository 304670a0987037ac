"""Tests exactly-once copies with offsets in the user's database, killed at any moment.

Runs the examples as separate processes and kills them with SIGKILL.
"""

from __future__ import annotations

import glob
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Producer
from penstock.testing import Broker
from penstock.testing.slowness import patient

ROOT = Path(__file__).resolve().parents[3]
RECORDS = 20_000
KILLS = 3
LIMIT_S = 150.0


class Source:
    """A topic and what was written to it."""

    def __init__(self, broker: Broker) -> None:
        self._bootstrap = broker.bootstrap
        self.topic = broker.new_topic(partitions=3)
        self.values: list[bytes] = []
        self.feed()

    def feed(self) -> None:
        first = len(self.values)
        values = [b"%06d" % number for number in range(first, first + RECORDS)]
        with Producer(self._bootstrap) as producer:
            for value in values:
                producer.send(self.topic, value)
        self.values += values


def start(example: str, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", f"examples.{example}", *words], cwd=ROOT, stdout=subprocess.PIPE
    )


def kill_while_it_writes(
    command: Callable[[], subprocess.Popen[bytes]],
    count: Callable[[], int],
    source: Source,
    seed: int,
) -> int:
    """Repeatedly starts the process, lets it write, and kills it. Returns how
    many kills hit it at work. On a busy machine a process may be done before it is killed; then
    it is given new records."""
    chance = random.Random(seed)
    pause = threading.Event()
    hits = 0
    for attempt in range(4 * KILLS):
        if hits == KILLS:
            break
        if attempt > hits:
            source.feed()
        before = count()
        process = command()
        still_s = chance.random() * 0.05
        for _ in range(int(patient(LIMIT_S) * 200)):
            if count() > before or process.poll() is not None:
                break
            pause.wait(0.005)
        pause.wait(still_s)
        hits += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=patient(LIMIT_S))
    return hits


def finish(
    command: Callable[[], subprocess.Popen[bytes]], count: Callable[[], int], source: Source
) -> None:
    """Lets the process end by itself. If the machine stands still, it may believe too early that
    nothing is left; then it is started again."""
    for _ in range(5):
        process = command()
        assert process.wait(patient(LIMIT_S)) == 0
        process.communicate()
        if count() >= len(source.values):
            break


def test_a_copy_to_sqlite_survives_crashes(live_broker: Broker, tmp_path: Path) -> None:
    """However often it is killed, the table ends up equal to the topic: no
    record is lost or duplicated."""
    source = Source(live_broker)
    path = tmp_path / "arrivals.db"
    # A static member; otherwise each start would wait for the session of the killed one to end.
    options = ("--name", "one", "--idle-timeout-ms", str(int(patient(4_000))))

    def command() -> subprocess.Popen[bytes]:
        return start("sqlite_offsets", live_broker.bootstrap, source.topic, str(path), *options)

    def count() -> int:
        if not path.exists():
            return 0
        with sqlite3.connect(path, timeout=30) as database:
            tables = database.execute("SELECT name FROM sqlite_master WHERE name = 'arrivals'")
            if not tables.fetchall():
                return 0
            found: int = database.execute("SELECT count(*) FROM arrivals").fetchone()[0]
        return found

    assert kill_while_it_writes(command, count, source, seed=1) >= 2
    finish(command, count, source)
    database = sqlite3.connect(path)
    arrived = [value for (value,) in database.execute("SELECT value FROM arrivals")]
    database.close()
    assert sorted(arrived) == source.values


def postgres_program(name: str) -> str | None:
    """Finds a PostgreSQL program. Debian does not put them on the path."""
    return shutil.which(name) or next(iter(glob.glob(f"/usr/lib/postgresql/*/bin/{name}")), None)


@pytest.fixture
def postgres() -> Iterator[str]:
    """Runs a PostgreSQL server for the test and yields its address for psycopg."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    initdb, server = postgres_program("initdb"), postgres_program("postgres")
    if initdb is None or server is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    # PostgreSQL refuses to run as root, and its user must be able to reach its directory.
    user = "postgres" if os.geteuid() == 0 else None
    home = tempfile.mkdtemp(prefix="penstock-postgres-")
    if user is not None:
        shutil.chown(home, user)
    data = f"{home}/data"
    subprocess.run(
        [initdb, "-D", data, "-U", "postgres", "--auth=trust", "--no-sync"],
        user=user,
        check=True,
        capture_output=True,
        timeout=patient(LIMIT_S),
    )
    process = subprocess.Popen(
        [server, "-D", data, "-k", home, "-c", "listen_addresses=", "-c", "fsync=off"],
        user=user,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"host={home} user=postgres dbname=postgres"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(patient(LIMIT_S))
        shutil.rmtree(home)


def test_a_copy_to_postgres_survives_crashes(live_broker: Broker, postgres: str) -> None:
    """Uses the same code as for SQLite, except for the driver's placeholders."""
    psycopg = pytest.importorskip("psycopg")
    source = Source(live_broker)

    def command() -> subprocess.Popen[bytes]:
        return start(
            *("postgres_offsets", live_broker.bootstrap, source.topic, postgres),
            *("--name", "one", "--idle-timeout-ms", str(int(patient(4_000)))),
        )

    def rows(statement: str) -> list[tuple[bytes]]:
        with psycopg.connect(postgres) as database:
            found: list[tuple[bytes]] = database.execute(statement).fetchall()
        return found

    def count() -> int:
        try:
            return len(rows("SELECT value FROM arrivals"))
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
            return 0  # The server is still starting, or the copy has not begun.

    assert kill_while_it_writes(command, count, source, seed=2) >= 2
    finish(command, count, source)
    assert sorted(value for (value,) in rows("SELECT value FROM arrivals")) == source.values
