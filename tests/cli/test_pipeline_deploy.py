"""Tests the commands about deployed pipelines with a real broker, without Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml", reason='pipelines need PySpark: pip install "penstock[spark]"')

from cli.conftest import Runner
from penstock.runtime import SystemClock
from penstock.spark.deployments import archive
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.model import Deployment, KeptGeneration, Status, WorkerStatus
from penstock.testing.broker import Broker

JOB = """
import os
query = (
    spark.readStream.format("penstock").option("subscribe", "a").load()
    .writeStream.queryName("copy").option("checkpointLocation", os.environ["PENSTOCK_STORAGE"])
    .start()
)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def name(broker: Broker) -> str:
    return broker.new_name("views").lower().replace("_", "-")


@pytest.fixture
def cli(
    penstock: Runner, broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Runner:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", broker.bootstrap)
    monkeypatch.setenv("COLUMNS", "160")
    return penstock


@pytest.fixture
def project(cli: Runner, name: str, tmp_path: Path) -> Path:
    assert cli("pipeline", "init", name, "--template", "sessions").code == 0
    return tmp_path / name


def with_catalog(broker: Broker, work: Callable[[Catalog], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with Catalog(broker.bootstrap) as catalog:
            await catalog.caught_up()
            return await work(catalog)

    return asyncio.run(main())


def report(broker: Broker, name: str, state: Any = "RUNNING", **given: Any) -> None:
    """A worker reports, as one would that runs the pipeline."""
    with_catalog(broker, lambda catalog: _report(catalog, name, state, given))


async def _report(catalog: Catalog, name: str, state: Any, given: Mapping[str, Any]) -> None:
    now_ms = SystemClock().wall_ms()
    worker = WorkerStatus(f"w-{name}", "box", "disk", now_ms, now_ms, [name])
    current = catalog.deployments[name]
    status = {"revision": current.revision, "version": current.version, **given}
    await catalog.report_worker(worker)
    await catalog.report(Status(name, state, worker=worker.id, host="box", **status))


async def _roll_back(catalog: Catalog, name: str) -> None:
    """As a worker does with --auto-rollback."""
    await catalog.change(name, lambda old: replace(old, version=1), "rolled-back", "")


@contextmanager
def reporting(broker: Broker, name: str, state: Any = "RUNNING", **given: Any) -> Iterator[None]:
    """Reports once the next version is deployed, from another thread."""

    async def work(catalog: Catalog) -> None:
        await _report(catalog, name, state, given)

    with after_deploying(broker, name, work):
        yield


@contextmanager
def after_deploying(
    broker: Broker, name: str, then: Callable[[Catalog], Awaitable[None]]
) -> Iterator[None]:
    async def version(catalog: Catalog) -> int:
        found = catalog.deployments.get(name)
        return 0 if found is None else found.version

    before = with_catalog(broker, version)

    def work() -> None:
        while with_catalog(broker, version) == before:
            pass
        with_catalog(broker, then)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join()


def edit(project: Path, old: str, new: str, path: str = "transformations/sessions.py") -> None:
    text = (project / path).read_text()
    assert old in text
    (project / path).write_text(text.replace(old, new))


def test_a_project_is_deployed_and_its_files_come_back(
    cli: Runner, broker: Broker, project: Path, name: str, tmp_path: Path
) -> None:
    ended = cli("pipeline", "deploy", name, "--every", "10m", "--memory", "2g", "--note", "first")
    assert ended.code == 0, ended.err
    assert "sessions: new; it starts without a checkpoint" in ended.out
    assert f"deployed {name} version 1" in ended.out
    assert "start one with: penstock pipeline worker" in ended.out
    shown = cli("pipeline", "status", name, "--deployed", "--json").json
    assert (shown["state"], shown["memory_mb"]) == ("WAITING FOR A WORKER", 2048)
    assert shown["schedule"] == "every 600 s"

    async def unpacked(catalog: Catalog) -> None:
        archive.unpack(await catalog.archive(catalog.versions[name, 1]), tmp_path / "copy")

    with_catalog(broker, unpacked)
    found = sorted(archive.project_files(tmp_path / "copy"))
    assert found == sorted(archive.project_files(project))
    assert "transformations/sessions.py" in found
    listed = cli("pipeline", "list", "--json").json["deployments"]
    assert name in [each["name"] for each in listed]
    assert name in cli("pipeline", "list").out
    events = cli("pipeline", "history", name, "--json").json["events"]
    assert [(each["what"], each["text"]) for each in events] == [("deployed", "version 1: first")]


def test_a_stateful_flow_that_changed_needs_a_decision(
    cli: Runner, project: Path, name: str
) -> None:
    assert cli("pipeline", "deploy", name).code == 0
    edit(project, "10 minutes", "20 minutes")
    refused = cli("pipeline", "deploy", name)
    assert refused.code == 2
    assert "--reset sessions (it restarts without its checkpoint)" in refused.err
    assert "--keep-checkpoint sessions (you know that the checkpoint still fits)" in refused.err
    assert len(cli("pipeline", "versions", name, "--json").json["versions"]) == 1
    assert "--yes" in cli("pipeline", "deploy", name, "--reset", "sessions").err
    made = cli("pipeline", "deploy", name, "--reset", "sessions", "--yes", "--json")
    flows = {each["flow"]: each for each in made.json["flows"]}
    assert flows["sessions"]["reset"]
    assert made.json["version"] == 2
    edit(project, "20 minutes", "30 minutes")
    kept = cli("pipeline", "deploy", name, "--keep-checkpoint", "sessions")
    assert "sessions: keeps its checkpoint, as --keep-checkpoint asks" in kept.out


def test_a_flow_of_a_project_begins_again_in_any_storage(
    cli: Runner, project: Path, name: str
) -> None:
    """Spark itself empties its table."""
    storage = f"s3a://tables/{name}"
    assert cli("pipeline", "deploy", name, "--storage", storage).code == 0
    again = cli("pipeline", "deploy", name, "--reset", "sessions", "--yes")
    assert again.code == 0, again.err
    assert "sessions: restarts without its checkpoint" in again.out
    shared = cli("pipeline", "deploy", name, "--name", f"{name}-2", "--storage", f"{storage}/")
    assert f"the storage of {name}: give each pipeline its own" in shared.err
    same = cli(
        "pipeline", "deploy", name, "--name", f"{name}-2", "--storage", f"s3://TABLES//{name}"
    )
    assert f"the storage of {name}: give each pipeline its own" in same.err


def test_start_stop_restart_and_delete(
    cli: Runner, broker: Broker, project: Path, name: str
) -> None:
    assert cli("pipeline", "deploy", name, "--stopped").code == 0
    assert cli("pipeline", "status", name, "--deployed", "--json").json["state"] == "STOPPED"
    assert cli("pipeline", "start", name, "--json").json["wanted"] == "RUNNING"
    report(broker, name)
    assert cli("pipeline", "status", name, "--deployed", "--json").json["state"] == "RUNNING"
    assert "on box" in cli("pipeline", "status", name, "--deployed").out
    assert cli("pipeline", "stop", name, "--json").json["wanted"] == "STOPPED"
    assert cli("pipeline", "restart", name, "--json").json["revision"] == 4
    report(broker, name, "FAILED", error="no table")
    assert "failed: no table" in cli("pipeline", "status", name, "--deployed").out
    assert cli("pipeline", "start", name, "--json").json["revision"] == 5, "it starts again"
    assert cli("pipeline", "delete", name).code == 2, "it asks first"
    deleted = cli("pipeline", "delete", name, "--yes")
    assert "tables and checkpoints are kept" in deleted.out
    gone = cli("pipeline", "stop", name)
    assert gone.code == 1
    assert "penstock pipeline list" in gone.err


def test_roll_back(cli: Runner, broker: Broker, project: Path, name: str) -> None:
    assert cli("pipeline", "deploy", name).code == 0
    report(broker, name, good_version=1)
    edit(project, 'comment="', 'comment="Really: ')
    assert cli("pipeline", "deploy", name).code == 0
    edit(project, "10 minutes", "20 minutes")
    assert cli("pipeline", "deploy", name, "--keep-checkpoint", "sessions").code == 0
    assert "--reset sessions" in cli("pipeline", "rollback", name).err
    assert "no version 9" in cli("pipeline", "rollback", name, "--to", "9").err
    made = cli("pipeline", "rollback", name, "--keep-checkpoint", "sessions", "--json")
    assert made.json["version"] == 1, "the last that worked"
    assert cli("pipeline", "rollback", name, "--to", "2").code == 0, "nothing changed in between"
    what = [each["what"] for each in cli("pipeline", "history", name, "--json").json["events"]]
    assert what == ["deployed", "deployed", "deployed", "rolled-back", "rolled-back"]
    versions = cli("pipeline", "versions", name, "--json").json["versions"]
    assert [(each["version"], each["current"], each["good"]) for each in versions] == [
        (3, False, False),
        (2, True, False),
        (1, False, True),
    ]
    assert cli("pipeline", "versions", name).code == 0


def test_a_rollback_takes_kept_tables_along(
    cli: Runner, broker: Broker, project: Path, name: str
) -> None:
    for _ in range(2):
        assert cli("pipeline", "deploy", name).code == 0

    def swapped(old: Deployment) -> Deployment:
        kept = KeptGeneration(0, 1, 1_000_000, SystemClock().wall_ms() + 1_000_000)
        return replace(old, generation=5, generations=5, kept=kept)

    with_catalog(broker, lambda catalog: catalog.change(name, swapped, "swapped", ""))
    back = cli("pipeline", "rollback", name, "--to", "1")
    assert back.code == 0, back.err
    assert "version 1 and the tables that it computed" in back.out
    found = cli("pipeline", "status", name, "--deployed", "--json").json
    assert (found["version"], found["generation"], found["kept"]["version"]) == (1, 0, 2)


def test_waiting_for_a_version_that_works(
    cli: Runner, broker: Broker, project: Path, name: str
) -> None:
    with reporting(broker, name, good_version=1):
        waited = cli("pipeline", "deploy", name, "--wait")
    assert waited.code == 0, waited.err
    assert f"{name} version 1 completed a round" in waited.out
    with reporting(broker, name, "BACKING OFF", good_version=1, error="no table"):
        failed = cli("pipeline", "deploy", name, "--wait")
    assert failed.code == 1
    assert "failed: no table" in failed.err
    report(broker, name, "STOPPING", revision=99, version=1, good_version=1)
    with after_deploying(broker, name, lambda catalog: _roll_back(catalog, name)):
        back = cli("pipeline", "deploy", name, "--wait")
    assert back.code == 1
    assert "is at version 1 now" in back.err
    late = cli("pipeline", "deploy", name, "--stopped", "--wait")
    assert late.code == 0, "a pipeline that is not started is not waited for"


def test_logs_and_workers(cli: Runner, broker: Broker, project: Path, name: str) -> None:
    assert cli("pipeline", "deploy", name).code == 0
    report(broker, name)
    with_catalog(broker, lambda catalog: catalog.log(name, 1, ["one", "tw\x1bo"]))
    assert cli("pipeline", "logs", name).out.splitlines() == ["one", r"tw\x1bo"]
    assert '"version":1' in cli("pipeline", "logs", name, "--json").out
    assert "--since" in cli("pipeline", "logs", name, "--since", "soon").err
    assert "penstock pipeline list" in cli("pipeline", "logs", f"{name}-2").err
    assert "penstock pipeline list" in cli("pipeline", "logs", f"{name}-2", "--follow").err
    workers = {each["id"]: each for each in cli("pipeline", "workers", "--json").json["workers"]}
    assert workers[f"w-{name}"]["state"] == "live"
    assert workers[f"w-{name}"]["pipelines"] == [name]
    assert "box" in cli("pipeline", "workers").out
    gone = WorkerStatus(f"gone-{name}", "box", "disk", 0, 1)
    with_catalog(broker, lambda catalog: catalog.report_worker(gone))
    assert gone.id not in cli("pipeline", "workers", "--json").out
    assert "deployed" in cli("pipeline", "history", name).out


def test_a_script_with_its_folder(cli: Runner, broker: Broker, name: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "helper.py").write_text("x = 1\n")
    given = ("pipeline", "deploy", "job.py", "--name", name, "--cron", "0 3 * * *")
    made = cli(*given, "--secret", "DB_PASSWORD", "--auto-rollback", "--json")
    assert made.code == 0, made.err
    assert [each["flow"] for each in made.json["flows"]] == ["copy"]
    shown = cli("pipeline", "status", name, "--json").json
    assert (shown["schedule"], shown["secrets"]) == ("cron 0 3 * * *", ["DB_PASSWORD"])
    assert shown["auto_rollback"]
    with_catalog(broker, lambda catalog: _check_script(catalog, name))
    refused = cli(*given, "--secret", "OTHER", "--no-secrets")
    assert refused.code != 0 and "--secret or --no-secrets" in refused.err
    cli(*given, "--conf", "spark.x=1", "--yes")
    with_catalog(broker, lambda catalog: _check_rest(catalog, name, {"spark.x": "1"}, 1))
    assert cli(*given, "--no-secrets", "--no-conf", "--yes").code == 0
    with_catalog(broker, lambda catalog: _check_rest(catalog, name, {}, 0))


async def _check_rest(catalog: Catalog, name: str, settings: dict[str, str], secrets: int) -> None:
    deployment = catalog.deployments[name]
    assert deployment.settings == settings and len(deployment.secrets) == secrets


async def _check_script(catalog: Catalog, name: str) -> None:
    version = catalog.versions[name, 1]
    assert (version.kind, version.entry) == ("script", "job.py")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--every", "10m", "--cron", "* * * * *"), "cannot be combined: give one of them"),
        (("--every", "soon"), "not a duration"),
        (("--cron", "at noon"), "not a cron schedule"),
        (("--cron", "0 0 31 2 *"), "Bad day-of-month"),
        (("--every", "10m", "--interval", "5"), "--interval is for --continuous"),
        (("--memory", "much"), "1024m or 2g"),
        (("--storage", "here"), "give a URL"),
        (("--secret", "../passwd"), "the name of a secret"),
        (("--name", "Views!"), "--name"),
        (("--conf", "x"), "KEY=VALUE"),
        (("--reset", "nothing"), "the flows are"),
    ],
)
def test_options_that_are_wrong(
    cli: Runner, project: Path, name: str, options: tuple[str, ...], expected: str
) -> None:
    refused = cli("pipeline", "deploy", name, *options)
    assert refused.code == 2
    assert expected in refused.err
    assert cli("pipeline", "status", name, "--deployed").code == 1


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("transformations/sessions.py", "def (:\n", "transformations/sessions.py, line 1"),
        ("transformations/notes.txt", "x", "neither Python nor SQL"),
        ("spark-pipeline.yml", "name: x\n", "no libraries"),
        ("spark-pipeline.yml", "name: [\n", "is not YAML"),
        (
            "spark-pipeline.yml",
            "name: x\nlibraries:\n  - glob:\n      include: other/**\n",
            "no file matches",
        ),
        (".penstockignore", "transformations/\n", "listed in .penstockignore"),
    ],
)
def test_projects_that_cannot_be_deployed(
    cli: Runner, project: Path, name: str, path: str, text: str, expected: str
) -> None:
    (project / path).write_text(text)
    refused = cli("pipeline", "deploy", name)
    assert refused.code == 2
    assert expected in refused.err


def test_without_a_broker_projects_are_still_listed(cli: Runner, project: Path, name: str) -> None:
    listed = cli("pipeline", "list", "--bootstrap", "127.0.0.1:9")
    assert listed.code == 0
    assert name in listed.out
    assert "deployed pipelines are not shown" in listed.out
    assert cli("pipeline", "deploy", name, "--bootstrap", "127.0.0.1:9").code == 2
