"""Tests the options of `penstock up` and `penstock broker` for metrics and logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Runner
from cli.test_up import FakeRun, running
from penstock.broker.config import BrokerConfig
from penstock.cli import supervise
from penstock.cli.broker_files import metrics_url

__all__ = ["running"]


def test_metrics_and_log_options_override_the_config_file(
    running: FakeRun, penstock: Runner, tmp_path: Path
) -> None:
    """These options are also keys of the file."""
    path = tmp_path / "broker.toml"
    path.write_text('metrics = "off"\nlog_level = "debug"\n')
    options = ("--metrics", "0.0.0.0:9404", "--log-format", "json")
    assert penstock("broker", "--config", str(path), *options).code == 0
    config = running.configs[0]
    assert (config.metrics, config.log_format, config.log_level) == (
        "0.0.0.0:9404",
        "json",
        "debug",
    )


def test_up_logs_only_warnings_by_default(running: FakeRun, penstock: Runner) -> None:
    """A user who tries a broker wants its address, not its log."""
    assert penstock("up").code == 0
    assert penstock("up", "--log-level", "info").code == 0
    assert [config.log_level for config in running.configs] == ["warning", "info"]
    assert running.configs[0].metrics == "auto"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("h:9404", ["h:9404", "h:9405"]),
        ("h:0", ["h:0", "h:0"]),
        ("off", ["off", "off"]),
    ],
)
def test_each_broker_has_its_own_metrics_address(
    penstock: Runner,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    given: str,
    expected: list[str],
) -> None:
    """The ports are consecutive, like those for clients."""
    started: list[BrokerConfig] = []

    def run(directory: str, configs: list[BrokerConfig], on_ready: object, *_: object) -> int:
        started.extend(configs)
        return 0

    monkeypatch.setattr(supervise, "run_brokers", run)
    monkeypatch.chdir(tmp_path)
    assert penstock("up", "--brokers", "2", "--metrics", given).code == 0
    assert [config.metrics for config in started] == expected


def test_wrong_options_are_reported_in_one_line(running: FakeRun, penstock: Runner) -> None:
    """Before any file is created."""
    ended = penstock("up", "--metrics", "somewhere")
    assert ended.code == 2
    assert "metrics is 'somewhere': write HOST:PORT, auto or off" in ended.err
    assert ended.err.count("\n") == 1
    assert penstock("up", "--log-format", "xml").code == 2
    assert running.configs == []


def test_up_shows_the_address_of_the_metrics(
    running: FakeRun, penstock: Runner, tmp_path: Path
) -> None:
    """It reads what the broker wrote to its data directory."""
    assert "metrics:" not in penstock("up").err
    noted = tmp_path / "penstock-data" / "broker-0"
    noted.mkdir()
    about = {"metrics": "127.0.0.1:10092"}
    (noted / "broker.json").write_text(json.dumps(about))
    assert "metrics: http://127.0.0.1:10092/metrics\n" in penstock("up").err
    (noted / "broker.json").write_text(json.dumps({**about, "metrics_scheme": "https"}))
    assert "metrics: https://127.0.0.1:10092/metrics\n" in penstock("up").err


@pytest.mark.parametrize("text", ["", "{", "{}"])
def test_an_unreadable_broker_file_is_ignored(tmp_path: Path, text: str) -> None:
    """It may be from another version, or incomplete."""
    (tmp_path / "broker.json").write_text(text)
    assert metrics_url(str(tmp_path)) is None
    assert metrics_url(str(tmp_path / "nowhere")) is None
