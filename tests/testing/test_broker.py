"""Tests `penstock.testing.Broker`: a real broker that tests can stop, kill and freeze."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.runtime import SystemClock, SystemRandom
from penstock.testing import Broker, BrokerFailed
from penstock.testing.ask import ask
from penstock.testing.ports import free_port
from penstock.testing.slowness import patient
from penstock.wire.messages import MetadataRequest, MetadataResponse

_CLOCK = SystemClock()
WAIT_S = 50.0


@pytest.mark.parametrize("worker", ["gw0", "gw1", "gw2"])
def test_test_processes_use_different_ports(worker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one process restarts its broker, no other process may take the port. gw2 replaced
    gw0."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "2")
    ports = {free_port(SystemRandom()) for _ in range(20)}
    assert {port % 2 for port in ports} == {int(worker[2:]) % 2}


def topics(broker: Broker, timeout_s: float | None = None) -> dict[str, int]:
    limit_s = patient(10.0)
    answer = ask(
        broker.bootstrap, MetadataRequest(topics=None), MetadataResponse, 9, timeout_s or limit_s
    )
    return {
        topic.name or "": len(topic.partitions) for topic in answer.topics if not topic.is_internal
    }


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends during the read
        return False


def test_topics_exist_when_new_topic_returns() -> None:
    with Broker() as broker:
        first = broker.new_topic(partitions=3)
        second = broker.new_topic(name="orders", configs={"cleanup.policy": "compact"})
        assert second == "orders"
        assert topics(broker) == {first: 3, "orders": 1}


def test_data_and_address_survive_a_kill_and_a_restart() -> None:
    with Broker() as broker:
        address, topic = broker.bootstrap, broker.new_topic()
        broker.kill()
        assert not broker.running
        with pytest.raises(OSError, match="refused"):
            topics(broker)
        broker.start()
        assert (broker.bootstrap, topics(broker)) == (address, {topic: 1})
        before = broker.pid
        broker.restart()
        assert broker.pid != before
        assert (broker.bootstrap, topics(broker)) == (address, {topic: 1})


def test_a_frozen_broker_answers_when_thawed() -> None:
    with Broker() as broker:
        broker.freeze()
        with pytest.raises(TimeoutError):
            topics(broker, timeout_s=0.2)
        broker.thaw()
        assert topics(broker) == {}


def test_closing_leaves_nothing_behind() -> None:
    """Neither the process nor its temporary directory remains."""
    broker = Broker()
    broker.start()
    pid = broker.pid
    directory = broker._directory
    assert directory is not None and directory.exists()
    broker.freeze()
    broker.close()
    assert not is_alive(pid)
    assert not directory.exists()
    broker.close()


def test_a_data_directory_given_by_the_user_is_kept(tmp_path: Path) -> None:
    with Broker(data=str(tmp_path / "kept")) as broker:
        topic = broker.new_topic()
    with Broker(data=str(tmp_path / "kept")) as broker:
        assert topics(broker) == {topic: 1}


def test_a_broker_that_cannot_start_reports_why() -> None:
    with pytest.raises(BrokerFailed, match=r"there is no setting 'num\.partition'"):
        Broker({"num.partition": "3"}).start()


def test_a_refused_topic_reports_why() -> None:
    with Broker() as broker, pytest.raises(BrokerFailed, match="bad/name"):
        broker.new_topic(name="bad/name")


def test_the_broker_does_not_outlive_the_process_that_started_it(tmp_path: Path) -> None:
    """Not even if that process was killed and could not clean up."""
    program = (
        "from penstock.testing import Broker\n"
        "broker = Broker()\nbroker.start()\nprint(broker.pid, flush=True)\ninput()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        os.kill(parent.pid, signal.SIGKILL)
    end, pause = _CLOCK.monotonic() + patient(WAIT_S), threading.Event()
    while is_alive(pid):
        assert _CLOCK.monotonic() < end, "the broker lives on"
        pause.wait(0.02)
