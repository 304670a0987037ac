"""Tests `penstock up` and `penstock broker`: options, config files and failures.

The broker itself is replaced here; `test_live.py` runs the real one.
"""

from __future__ import annotations

import errno
import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Runner
from penstock.broker import main as broker_main
from penstock.broker.config import BrokerConfig, load_config
from penstock.broker.control.membership import Replaced
from penstock.cli import supervise
from penstock.cli.broker_files import config_text, default_text
from penstock.metadata.stored_fields import MetadataInvalid
from penstock.storage.errors import StorageError

OnReady = Callable[[list[str]], None]


def internal_replicas(count: int) -> dict[str, str]:
    """The replication factors of internal topics, so that groups and
    transactions work in a small cluster."""
    return {
        "offsets.topic.replication.factor": str(count),
        "transaction.state.log.replication.factor": str(count),
        "share.coordinator.state.topic.replication.factor": str(count),
        "audit.topic.replication.factor": str(count),
    }


class FakeRun:
    """Replaces `run_broker`: it records the config, is ready at once, and ends."""

    def __init__(self) -> None:
        self.configs: list[BrokerConfig] = []
        self.error: Exception | None = None
        self.code = 0

    def __call__(self, config: BrokerConfig, on_ready: OnReady, before_stop: object = None) -> int:
        self.configs.append(config)
        if self.error is not None:
            raise self.error
        on_ready([f"{config.host}:{config.port}"])
        return self.code


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRun:
    run = FakeRun()
    monkeypatch.setattr(broker_main, "run_broker", run)
    monkeypatch.chdir(tmp_path)
    return run


def test_one_broker_runs_in_this_process(running: FakeRun, penstock: Runner) -> None:
    """The ready line is on stdout; messages for people are on stderr."""
    ended = penstock("up")
    assert (ended.code, ended.out) == (0, "ready bootstrap=127.0.0.1:9092\n")
    assert f"data in {os.getcwd()}/penstock-data; Ctrl-C stops" in ended.err
    assert "penstock produce greetings\n" in ended.err
    config = running.configs[0]
    assert (config.broker_id, config.port) == (0, 9092)
    assert config.data_dir == "penstock-data/broker-0"
    assert config.store == "penstock-data/metadata.db"


def test_options_and_settings_reach_the_broker(
    running: FakeRun, penstock: Runner, tmp_path: Path
) -> None:
    """Penstock's own settings and Kafka's, by their names."""
    arguments = ("--port", "19092", "--host", "localhost", "--data", str(tmp_path / "d"))
    ended = penstock("up", *arguments, "--set", "num.partitions=4", "--set", "rack = r1")
    assert ended.code == 0
    assert "-b localhost:19092" in ended.err
    config = running.configs[0]
    assert (config.host, config.port, config.rack) == ("localhost", 19092, "r1")
    assert dict(config.kafka) == {"num.partitions": "4", **internal_replicas(1)}
    assert config.data_dir == f"{tmp_path}/d/broker-0"


def test_the_exit_code_is_the_brokers(running: FakeRun, penstock: Runner) -> None:
    running.code = 3
    assert penstock("up").code == 3


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.EADDRINUSE, "address in use"), "127.0.0.1:9092 is in use"),
        (OSError(errno.EADDRNOTAVAIL, "no such address"), "is not an address of this machine"),
        (PermissionError(errno.EACCES, "no", "/data/x"), "/data/x is not writable"),
        (PermissionError(errno.EACCES, "no"), "port 9092 needs privileges"),
        (OSError(errno.ENOSPC, "no space left", "/data"), "no space is left on the disk of"),
        (FileExistsError(errno.EEXIST, "no", "/data"), "/data is a file, which the broker"),
        (IsADirectoryError(errno.EISDIR, "no", "/data/x"), "/data/x is a directory, which"),
        (OSError(errno.EIO, "no", "/data/x"), "the disk failed at /data/x: check it"),
        (MetadataInvalid("/penstock/cluster", "not JSON"), "restore the store from a backup"),
        (Replaced("another broker has registered as 1"), "another broker has registered as 1"),
        (StorageError("d is in use by another broker: stop it"), "d is in use by another broker"),
    ],
)
def test_a_failure_to_start_is_reported_in_one_line(
    running: FakeRun, penstock: Runner, error: Exception, message: str
) -> None:
    """With advice and exit code 2."""
    running.error = error
    ended = penstock("up")
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert ended.err.count("\n") == 1


def test_a_wrong_setting_gets_a_suggestion(running: FakeRun, penstock: Runner) -> None:
    """Before any file is created."""
    ended = penstock("up", "--set", "num.partition=4")
    assert ended.code == 2
    assert "did you mean num.partitions?" in ended.err
    assert penstock("up", "--set", "num.partitions").code == 2
    assert penstock("up", "--set", "port=many").code == 2
    assert running.configs == []
    assert not Path("penstock-data").exists()


def test_a_data_directory_that_cannot_be_created_is_reported(
    running: FakeRun, penstock: Runner, tmp_path: Path
) -> None:
    """With its path."""
    (tmp_path / "file").write_text("")
    ended = penstock("up", "--data", str(tmp_path / "file" / "data"))
    assert ended.code == 2
    assert "file/data cannot be created (Not a directory): choose another directory" in ended.err


def test_several_brokers_get_one_config_file_each(
    running: FakeRun, penstock: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ports are consecutive, data directories are siblings, the store is shared."""
    started: list[list[str]] = []

    class FakeSupervisor:
        def __init__(
            self, commands: list[list[str]], clock: object, on_ready: OnReady, **_: object
        ) -> None:
            started.extend(commands)
            self._on_ready = on_ready

        async def run(self) -> int:
            self._on_ready(["h:1", "h:2"])
            return 0

    monkeypatch.setattr(supervise, "Supervisor", FakeSupervisor)
    ended = penstock("up", "--brokers", "2", "--port", "700", "--set", "num.partitions=4")
    assert (ended.code, ended.out) == (0, "ready bootstrap=h:1,h:2\n")
    paths = [command[command.index("--config") + 1] for command in started]
    configs = [load_config(path) for path in paths]
    assert [config.broker_id for config in configs] == [0, 1]
    assert [config.port for config in configs] == [700, 701]
    assert [config.data_dir for config in configs] == [
        "penstock-data/broker-0",
        "penstock-data/broker-1",
    ]
    assert {config.store for config in configs} == {"penstock-data/metadata.db"}
    for config in configs:
        assert dict(config.kafka) == {"num.partitions": "4", **internal_replicas(2)}
    assert running.configs == []


def test_a_broker_runs_with_its_config_file(
    running: FakeRun, penstock: Runner, tmp_path: Path
) -> None:
    """`--set` overrides the file."""
    path = tmp_path / "broker.toml"
    path.write_text('port = 1234\nhost = "h"\n[kafka]\n"num.partitions" = 7\n')
    ended = penstock("broker", "--config", str(path), "--set", "broker_id=5")
    assert (ended.code, ended.out, ended.err) == (0, "ready bootstrap=h:1234\n", "")
    config = running.configs[0]
    assert (config.broker_id, config.kafka) == (5, (("num.partitions", "7"),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "there is no setting 'prot': did you mean port?"),
        ("port = 'x'", "port must be of type int"),
        ("port = 70000", "it must be 0 to 65535"),
        ("[kafka]\n'num.partition' = 1", "did you mean num.partitions?"),
        ("= 5", "is not TOML"),
    ],
)
def test_a_bad_config_file_gets_a_suggestion(
    running: FakeRun, penstock: Runner, tmp_path: Path, text: str, message: str
) -> None:
    """In one line."""
    path = tmp_path / "broker.toml"
    path.write_text(text)
    ended = penstock("broker", "--config", str(path))
    assert ended.code == 2
    assert message in ended.err
    assert ended.err.count("\n") == 1


def test_broker_needs_an_existing_config_file(running: FakeRun, penstock: Runner) -> None:
    assert "--print-config prints a commented example" in penstock("broker").err
    ended = penstock("broker", "--config", "nope.toml")
    assert ended.code == 2
    assert "nope.toml cannot be read: No such file or directory" in ended.err


def test_the_printed_config_documents_every_key_and_is_valid(
    penstock: Runner, tmp_path: Path
) -> None:
    """As printed, and with every # before a key removed."""
    ended = penstock("broker", "--print-config")
    assert ended.code == 0
    path = tmp_path / "broker.toml"
    path.write_text(ended.out)
    assert load_config(str(path)) == BrokerConfig()
    lines = [
        line.removeprefix("#") if line.startswith("#") and not line.startswith("# ") else line
        for line in ended.out.splitlines()
    ]
    values = tomllib.loads("\n".join(lines))
    for key in BrokerConfig.__dataclass_fields__:
        assert key in values
    assert len(values["kafka"]) > 20
    path.write_text("\n".join(line for line in lines if '= ""' not in line))
    assert load_config(str(path)).port == BrokerConfig().port


def test_written_config_files_are_read_back() -> None:
    """With any characters in them."""
    config = BrokerConfig(
        port=1, data_dir='a "quoted" \\ pâth', kafka=(("num.partitions", "3"),), idle_timeout_s=1.5
    )
    values = tomllib.loads(config_text(config))
    kafka = values.pop("kafka")
    assert BrokerConfig(**values, kafka=tuple(kafka.items())) == config
    assert default_text().isascii()
