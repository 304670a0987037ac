"""Tests the commands about recomputes with a real broker, without Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml", reason='pipelines need PySpark: pip install "penstock[spark]"')

from cli.conftest import Runner
from penstock import Admin, Producer
from penstock.runtime import SystemClock
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.generations import swapped
from penstock.spark.deployments.model import Deployment, Status
from penstock.testing.broker import Broker
from penstock.topic_partition import TopicPartition

SPEC = """name: {name}
storage: tables
libraries:
  - glob:
      include: transformations/**
"""
FLOWS = """
from pyspark import pipelines as dp

@dp.table
def page_views():
    return spark.readStream.format("penstock").option("subscribe", "views").load()

@dp.table
def users():
    return spark.readStream.table("page_views")
"""
SINK = """
dp.create_sink("out", "penstock", {"topic": "alerts"})

@dp.append_flow(target="out")
def alerts():
    return spark.readStream.table("page_views")
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
    penstock: Runner, broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Runner:
    """Runs commands in the folder of a project that is deployed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", broker.bootstrap)
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(name=name))
    flows(tmp_path, FLOWS)
    assert penstock("pipeline", "deploy").code == 0
    return penstock


def flows(folder: Path, code: str) -> None:
    (folder / "transformations" / "flows.py").write_text(code)


def with_catalog(broker: Broker, work: Callable[[Catalog], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with Catalog(broker.bootstrap) as catalog:
            await catalog.caught_up()
            return await work(catalog)

    return asyncio.run(main())


def deployed(broker: Broker, name: str) -> Deployment:
    async def look(catalog: Catalog) -> Deployment:
        return catalog.deployment(name)

    found = with_catalog(broker, look)
    assert isinstance(found, Deployment)
    return found


def swap_now(broker: Broker, name: str) -> None:
    """As a worker does when the new tables have caught up."""

    def change(old: Deployment) -> Deployment:
        assert old.recompute is not None
        return swapped(old, old.recompute.generation, SystemClock().wall_ms())

    with_catalog(broker, lambda catalog: catalog.change(name, change, "swapped", ""))


def report(broker: Broker, status: Status) -> None:
    with_catalog(broker, lambda catalog: catalog.report(status))


def test_a_new_version_computes_the_tables_beside_the_running_one(
    cli: Runner, broker: Broker, name: str, tmp_path: Path
) -> None:
    flows(tmp_path, FLOWS.replace('"views"', '"visits"'))
    ended = cli("pipeline", "deploy", "--recompute", "users,page_views", "--swap", "manual")
    assert ended.code == 0, ended.err
    assert "page_views, users of" in ended.out
    made = deployed(broker, name)
    assert (made.version, made.generation) == (1, 0)
    assert made.recompute is not None
    assert (made.recompute.version, made.recompute.swap) == (2, "manual")
    shown = cli("pipeline", "status", name, "--deployed").out
    assert "recompute of page_views, users with version 2 since" in shown
    progress = {
        "generation": made.recompute.generation,
        "stage": "caught up",
        "state": "RUNNING",
        "caught_up": True,
        "lag": 12,
        "served_lag": 3,
    }
    report(broker, Status(name, "RUNNING", made.revision, 1, recompute=progress))
    shown = cli("pipeline", "status", name, "--deployed").out
    assert "new tables: 12 records behind their topics; served tables: 3" in shown
    assert f"to put the new tables in use: penstock pipeline swap {name}" in shown
    assert cli("pipeline", "swap", name).code == 0
    now = deployed(broker, name).recompute
    assert now is not None
    assert now.asked


def test_the_way_back(cli: Runner, broker: Broker, name: str) -> None:
    ended = cli("pipeline", "recompute", name, "page_views", "users", "--keep", "2d", "--json")
    assert ended.code == 0, ended.err
    told = json.loads(ended.out)
    assert told["recompute"]["tables"] == ["page_views", "users"]
    swap_now(broker, name)
    shown = cli("pipeline", "status", name, "--deployed").out
    assert f"penstock pipeline swap {name} --back" in shown
    back = json.loads(cli("pipeline", "swap", name, "--back", "--json").out)
    assert back["generation"] == 0
    assert back["kept"]["generation"] == told["recompute"]["generation"]
    what = [
        each["what"]
        for each in json.loads(cli("pipeline", "history", name, "--json").out)["events"]
    ]
    assert what == ["deployed", "recompute", "swapped", "swapped-back"]


def test_nothing_else_is_deployed_until_it_is_cancelled(
    cli: Runner, broker: Broker, name: str
) -> None:
    assert cli("pipeline", "recompute", name, "page_views", "users").code == 0
    for words in (
        ("deploy",),
        ("deploy", "--recompute", "page_views,users"),
        ("recompute", name, "page_views", "users"),
        ("rollback", name, "--to", "1"),
        ("swap", name, "--back"),
    ):
        refused = cli("pipeline", *words)
        assert refused.code != 0
        assert f"penstock pipeline recompute {name} --cancel" in refused.err
    assert cli("pipeline", "recompute", name, "--cancel").code == 0
    assert deployed(broker, name).recompute is None
    assert "no recompute" in cli("pipeline", "swap", name).err
    assert "no earlier tables" in cli("pipeline", "swap", name, "--back").err
    assert cli("pipeline", "deploy").code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--recompute", "users"), "add the tables page_views"),
        (("--recompute", "user,page_views"), "there is no table user"),
        (("--recompute", ","), "name the tables"),
        (("--recompute", "users", "--swap", "soon"), "give manual or when-caught-up"),
        (("--recompute", "users", "--keep", "long"), "--keep: 'long' is not a duration"),
        (
            ("--recompute", "users", "--memory", "2g"),
            "--memory cannot be combined with --recompute",
        ),
        (
            ("--recompute", "users", "--reset", "users"),
            "--reset cannot be combined with --recompute",
        ),
        (("--keep", "2d"), "--swap and --keep need --recompute"),
    ],
)
def test_what_cannot_be_recomputed_is_refused_at_once(
    cli: Runner, broker: Broker, name: str, words: tuple[str, ...], told: str
) -> None:
    refused = cli("pipeline", "deploy", *words)
    assert refused.code != 0
    assert told in refused.err
    assert deployed(broker, name).revision == 1


def test_a_flow_that_writes_to_a_topic_is_refused(
    cli: Runner, broker: Broker, name: str, tmp_path: Path
) -> None:
    flows(tmp_path, FLOWS + SINK)
    ended = cli("pipeline", "deploy", "--recompute", "page_views,users")
    assert ended.code == 0, "the flow is new, and begins after the swap"
    swap_now(broker, name)
    refused = cli("pipeline", "deploy", "--recompute", "page_views,users")
    assert refused.code != 0
    assert "alerts writes to a topic, and would write its records again" in refused.err


def test_records_that_retention_has_deleted_are_named_first(
    cli: Runner, broker: Broker, name: str
) -> None:
    topic = broker.new_name("short")
    with Admin(broker.bootstrap) as admin, Producer(broker.bootstrap) as producer:
        admin.create_topic(topic, 1)
        for _ in range(5):
            producer.send(topic, b"x").result()
        admin.delete_records({TopicPartition(topic, 0): 3})
    graph = {
        "nodes": [
            {"id": f"topic:{topic}", "kind": "topic", "name": topic},
            {"id": "table:page_views", "kind": "table", "name": "page_views", "flow": "page_views"},
            {"id": "table:users", "kind": "table", "name": "users", "flow": "users"},
        ],
        "edges": [{"from": f"topic:{topic}", "to": "table:page_views"}],
    }
    report(broker, Status(name, "RUNNING", 1, 1, run={"graph": graph}))
    refused = cli("pipeline", "recompute", name, "page_views", "users")
    assert refused.code != 0
    assert f"Retention has deleted the first records of {topic} (3 records)" in refused.err
    assert deployed(broker, name).recompute is None
    assert cli("pipeline", "recompute", name, "page_views", "users", "--yes").code == 0


def test_a_script_is_refused(cli: Runner, name: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("print(1)\n")
    other = f"{name}-job"
    assert cli("pipeline", "deploy", "job.py", "--name", other).code == 0
    refused = cli("pipeline", "recompute", other, "users")
    assert refused.code != 0
    assert "is a script" in refused.err
