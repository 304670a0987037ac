"""Tests `penstock doctor`: each check alone, and the whole command with real brokers."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

import pytest

from cli.conftest import Runner
from penstock.broker.config import METRICS_OFFSET
from penstock.cli import doctor_cluster, doctor_health, doctor_machine
from penstock.cli.doctor_finding import Finding, State
from penstock.client.address import Address
from penstock.client.admin.inspection import LogDirInfo
from penstock.client.admin.operations import BrokerInfo
from penstock.client.errors import BrokerError
from penstock.runtime import SystemRandom
from penstock.storage.disk import OsDisk
from penstock.testing.broker import Broker
from penstock.testing.ports import free_port
from penstock.wire.errors import ErrorCode


def by_name(findings: list[dict[str, str]]) -> dict[str, dict[str, str]]:
    return {each["name"]: each for each in findings}


def test_a_healthy_machine_without_a_cluster_has_no_problem(
    penstock: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first start there is no problem to report. The advice names the next step."""
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP", raising=False)
    monkeypatch.setattr(doctor_machine, "check_port", lambda port: ok(f"port {port}"))
    monkeypatch.setattr("penstock.cli.doctor.DEFAULT_BOOTSTRAP", "localhost:1")
    ended = penstock("doctor", "--json", "--data", str(tmp_path / "new"), "-b", "localhost:1")
    assert ended.code == 0
    found = by_name(ended.json["findings"])
    assert found["python"]["state"] == "ok"
    assert found["fsync"]["found"].endswith("to make 4 KiB durable")
    assert found["data"]["found"] == f"{tmp_path}/new (created at the first start)"
    assert found["cluster"]["state"] == "note"
    assert "penstock up" in found["cluster"]["advice"]
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_cluster_that_was_named_is_a_problem(
    penstock: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, lines of at most 80 columns, and advice."""
    monkeypatch.setenv("COLUMNS", "80")
    ended = penstock("doctor", "--data", str(tmp_path), "--bootstrap", "localhost:1")
    assert ended.code == 1
    assert "BAD   cluster" in ended.out
    assert "-> start one with: penstock up" in ended.out
    assert all(len(line) <= 80 for line in ended.out.splitlines())
    assert "1 problem," in ended.out.splitlines()[-1]


def test_a_real_broker_is_checked_and_probed(
    penstock: Runner, tmp_path: Path, penstock_broker: Broker
) -> None:
    """The broker answers at its advertised address, a record is written and read, clocks agree, and
    the probe leaves nothing behind."""
    ended = penstock(
        "doctor", "--probe", "--json", "--data", str(tmp_path), "-b", penstock_broker.bootstrap
    )
    assert ended.code == 0, ended
    found = by_name(ended.json["findings"])
    assert penstock_broker.bootstrap in found["broker 0"]["found"]
    assert "its clock matches ours" in found["probe 0"]["found"]
    assert found["probe reads"]["state"] == "ok"
    # A broker whose default metrics port is taken uses another one.
    assert found["health of 0"]["found"] == "ready" or found["health of 0"]["state"] == "note"
    topics = penstock("topic", "list", "--json", "-b", penstock_broker.bootstrap).json["topics"]
    assert not [each for each in topics if each["name"].startswith("penstock-doctor")]


def test_partitions_without_a_leader_are_a_problem() -> None:
    """In the words of `penstock status`. Less urgent findings are warnings."""
    status = {
        "advice": ["1 partition without a leader: wait", "broker 2 is not running: start it"],
        "brokers": [{}],
        "partitions": 3,
        "offline_partitions": [{}],
        "under_min_isr_partitions": [],
    }
    assert [*doctor_cluster.check_standing(status)] == [
        Finding("cluster", State.PROBLEM, "1 partition without a leader", "wait"),
        Finding("cluster", State.WARNING, "broker 2 is not running", "start it"),
    ]
    well = {**status, "advice": [], "offline_partitions": []}
    (found,) = doctor_cluster.check_standing(well)
    assert found.state is State.OK


def test_a_port_in_use_is_reported_with_its_process() -> None:
    """With advice. A free port is ok."""
    with socket.socket() as holder:
        port = free_port(SystemRandom())  # No outgoing connection gets it afterwards.
        holder.bind(("127.0.0.1", port))
        holder.listen()
        found = doctor_machine.check_port(port)
        assert found.state is State.WARNING
        assert f"(pid {os.getpid()})" in found.found
        assert "--port" in found.advice
    assert doctor_machine.check_port(port).state is State.OK


@pytest.mark.skipif(os.geteuid() == 0, reason="to root everything is writable")
def test_a_directory_that_is_not_writable_is_a_problem(tmp_path: Path) -> None:
    """Nothing else is measured there."""
    tmp_path.chmod(0o500)
    (found,) = doctor_machine.check_directory(str(tmp_path / "data"))
    assert (found.name, found.state) == ("data", State.PROBLEM)


def test_files_of_another_user_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that ran as root leaves such files."""
    (tmp_path / "broker-0").mkdir()
    stranger = os.stat(tmp_path).st_uid + 4711
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    found = next(iter(doctor_machine.check_directory(str(tmp_path), OsDisk())))
    assert found.state is State.PROBLEM
    assert f"chown -R {stranger}" in found.advice


def test_root_is_warned_about_a_directory_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a broker running as root leaves files there that the owner cannot write."""
    owner = 4711
    if os.geteuid() == 0:
        os.chown(tmp_path, owner, -1)
    else:
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = next(iter(doctor_machine.check_directory(str(tmp_path), OsDisk())))
    assert (found.state, f"user {owner}" in found.advice) == (State.WARNING, True)


def test_a_file_instead_of_a_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    (found,) = doctor_machine.check_directory(str(tmp_path / "data"))
    assert found.found.endswith("is a file")


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
server:/x /mnt/my\\040data nfs4 rw 0 0
broken line
"""


@pytest.mark.parametrize(
    ("directory", "kind"),
    [("/tmp/x", "tmpfs"), ("/tmpfoo", "ext4"), ("/mnt/my data/y", "nfs4"), ("/", "ext4")],
)
def test_the_deepest_mount_point_counts(directory: str, kind: str) -> None:
    """Mount points may contain spaces."""
    assert doctor_machine.file_system(directory, MOUNTS) == kind


@pytest.mark.parametrize(
    ("free", "total", "state"),
    [
        (100 << 30, 200 << 30, State.OK),
        (15 << 30, 200 << 30, State.WARNING),
        (900 << 20, 2 << 30, State.WARNING),
        (100 << 20, 200 << 30, State.PROBLEM),
    ],
)
def test_free_disk_space_is_checked(free: int, total: int, state: State) -> None:
    """Below the brokers' reserve, nothing can be written."""
    assert doctor_machine.check_space(free, total, "/data").state is state


def test_a_slow_disk_is_a_warning() -> None:
    """The advice names the setting that does not wait for fsync."""
    assert doctor_machine.check_fsync(0.001, "/data").state is State.OK
    slow = doctor_machine.check_fsync(0.050, "/data")
    assert slow.state is State.WARNING
    assert "durability=replicated" in slow.advice


def test_the_limit_of_open_files_is_checked() -> None:
    """Sufficient, low and too low. The hard limit decides whether root is needed to raise it."""
    assert doctor_machine.check_open_files((-1, -1)).state is State.OK
    little = doctor_machine.check_open_files((4096, 100_000))
    assert little.state is State.NOTE
    assert "as root" not in little.advice
    few = doctor_machine.check_open_files((1024, 4096))
    assert few.state is State.WARNING
    assert "as root" in few.advice


def test_memory_and_clock_are_checked() -> None:
    """As reported by the kernel, if it does."""
    (low,) = doctor_machine.check_memory("MemTotal: 1 kB\nMemAvailable:  1024 kB\n")
    assert low.state is State.WARNING
    assert [*doctor_machine.check_memory("")] == []
    assert doctor_machine.check_clock(0).state is State.OK
    assert doctor_machine.check_clock(5).state is State.WARNING
    assert doctor_machine.check_clock(None).state is State.NOTE


def test_optional_packages_are_checked() -> None:
    """Missing ones are noted with how to install them, old ones are a warning."""

    def check(found: str | None) -> Finding:
        return doctor_machine.check_optional("pyspark", found, (4, 3), "pip", "Spark")

    assert check(None).state is State.NOTE
    assert check("4.2.1").state is State.WARNING
    assert check("4.3.0").state is State.OK
    assert check("10.0.dev1").state is State.OK


@pytest.mark.parametrize(
    ("broker_ms", "state", "word"),
    [
        (1_005, State.OK, "matches"),
        (500, State.OK, "matches"),
        (9_000, State.WARNING, "8.0 s ahead of"),
        (-4_000, State.WARNING, "5.0 s behind"),
    ],
)
def test_clock_differences_are_reported_only_beyond_the_uncertainty(
    broker_ms: int, state: State, word: str
) -> None:
    """The broker stamped the record at some moment between the request and the response."""
    found = doctor_cluster.compare_clocks("probe 1", 1_000, broker_ms, 1_010)
    assert found.state is state
    assert word in found.found


def answering(page: bytes, broker_id: int = 3) -> list[Finding]:
    """Returns the findings for a server that answers with this page."""

    async def ask() -> list[Finding]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(page)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1] - METRICS_OFFSET
            broker = BrokerInfo(broker_id, Address("127.0.0.1", port), None)
            return await doctor_health.check_health(broker)

    return asyncio.run(ask())


def test_a_brokers_health_report_is_shown_with_its_advice() -> None:
    checks = [
        {"check": "disk", "ok": True, "what": "/data is writable", "advice": ""},
        {"check": "store", "ok": False, "what": "refuses writes: full", "advice": "Free space."},
        {"check": "fetchers", "ok": False, "what": "1 replica not in sync", "advice": "Wait."},
    ]
    report = json.dumps({"ready": False, "broker": 3, "checks": checks}).encode()
    length = f"Content-Length: {len(report)}\r\n\r\n".encode()
    found = answering(b"HTTP/1.1 503 Service Unavailable\r\n" + length + report)
    assert found == [
        Finding("health of 3", State.PROBLEM, "refuses writes: full", "Free space."),
        Finding("health of 3", State.WARNING, "1 replica not in sync", "Wait."),
    ]


@pytest.mark.parametrize(
    "page",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<html>",
        b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"broker": 4, "checks": []}',
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b" " * (2 << 20),
        b"",
    ],
    ids=["not HTTP", "not JSON", "another broker", "endless", "nothing"],
)
def test_another_program_at_a_brokers_metrics_port_is_not_a_problem(page: bytes) -> None:
    (found,) = answering(page)
    assert found.state is State.NOTE
    assert "run this on the broker's machine" in found.advice


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"ready": true}', "needs a token"),
        (b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n\r\nno", "does not accept this token"),
    ],
)
def test_a_health_report_that_needs_a_token_is_a_note(page: bytes, reason: str) -> None:
    """It says which options to give."""
    (found,) = answering(page)
    assert found.state is State.NOTE
    assert reason in found.found
    assert "--metrics-token-file" in found.advice


def test_disks_of_brokers_are_checked() -> None:
    """A failed disk is a problem, a nearly full one a warning."""
    error = BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "it broke")
    found = [
        *doctor_cluster.check_disks(
            [
                LogDirInfo(0, "/a", {}, 100, 50, None),
                LogDirInfo(1, "/b", {}, 100, 5, None),
                LogDirInfo(2, "/c", {}, 100, 50, error),
            ]
        )
    ]
    assert [(each.name, each.state) for each in found] == [
        ("disk of 1", State.WARNING),
        ("disk of 2", State.PROBLEM),
    ]


def ok(name: str) -> Finding:
    return Finding(name, State.OK, "")


def test_internal_topics_with_too_few_replicas_are_reported_with_the_repair_command() -> None:
    setting = "offsets.topic.replication.factor"

    def check(wanted: int, held: int | None, brokers: int) -> Finding | None:
        return doctor_cluster.check_replicas("__consumer_offsets", setting, wanted, held, brokers)

    assert check(3, 3, 3) is None
    assert check(1, 3, 3) is None
    assert check(3, None, 3) is None
    too_few = check(3, 1, 3)
    assert too_few is not None
    assert too_few.state is State.WARNING
    assert too_few.advice == "penstock cluster replicate __consumer_offsets --replicas 3"
    alone = check(3, 1, 1)
    assert alone is not None
    assert alone.advice.startswith("start 2 more brokers")
    waiting = check(3, None, 1)
    assert waiting is not None
    assert waiting.found == f"not created yet: {setting} is 3, but the cluster has 1 broker"
