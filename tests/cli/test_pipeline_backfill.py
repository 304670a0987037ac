"""Tests `penstock pipeline backfill` with a real broker, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml", reason='pipelines need PySpark: pip install "penstock[spark]"')

from cli.conftest import Runner
from cli.test_pipeline_deploy import report, with_catalog
from penstock import Admin, Producer
from penstock.cli.pipeline_backfill import _texts
from penstock.spark.deployments.backfill_plan import Figures
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.model import BackfillStatus, Deployment
from penstock.spark.stream_position import BackfillRequest
from penstock.testing.broker import Broker
from penstock.topic_partition import TopicPartition

JOB = """
query = (
    spark.readStream.format("penstock").option("subscribe", "a").option("flow", "copy").load()
    .writeStream.queryName("copy").start()
)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


class Deployed:
    """A script that reads a topic of ten records from the sixth on."""

    def __init__(self, cli: Runner, broker: Broker, name: str) -> None:
        self.cli = cli
        self.broker = broker
        self.name = name
        self.topic = broker.new_topic(1)
        Path("job.py").write_text(JOB)
        assert cli("pipeline", "deploy", "job.py", "--name", name, "--stopped").code == 0
        with Producer(broker.bootstrap) as producer:
            for _ in range(10):
                producer.send(self.topic, b"x")

    def report(self, backfills: list[BackfillStatus] | None = None, **flow: Any) -> None:
        view = {
            "name": "copy",
            "stateful": False,
            "topics": {self.topic: 1},
            "began": {self.topic: {"0": 6}},
            "backfilled": {},
            **flow,
        }
        report(self.broker, self.name, run={"flows": [view]}, backfills=backfills or [])

    def __call__(self, *words: str) -> Any:
        return self.cli("pipeline", "backfill", self.name, *words)

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json").out)

    def deployment(self) -> Deployment:
        async def look(catalog: Catalog) -> Deployment:
            return catalog.deployment(self.name)

        found: Deployment = with_catalog(self.broker, look)
        return found


@pytest.fixture
def deployed(
    penstock: Runner, broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Deployed:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", broker.bootstrap)
    monkeypatch.setenv("COLUMNS", "200")
    return Deployed(penstock, broker, broker.new_name("views").lower().replace("_", "-"))


def test_a_backfill_is_requested_shown_and_cancelled(deployed: Deployed) -> None:
    """Its figures come before the question, and nothing is changed without an answer."""
    deployed.report()
    asked = deployed("copy", "--from", "1d")
    assert asked.code and "Read 6 records into copy? Add --yes" in asked.err
    assert "copy: 6 records in 1 partition" in asked.out
    assert "left out, because the flow reads them itself: 4" in asked.out
    assert deployed.deployment().backfills == []

    made = deployed.json("copy", "--from", "1d", "--yes", "--max-bytes-per-trigger", "2m")
    assert (made["records"], made["repeated"], made["left_out"]) == (6, 0, 4)
    (request,) = deployed.deployment().backfills
    assert request.ranges == {deployed.topic: {"0": [[0, 6]]}}
    assert (request.sources, request.bytes_max, request.again) == (["copy"], 2 << 20, False)
    assert request.id == deployed.deployment().revision

    refused = deployed("copy", "--from", "1d", "--yes")
    assert refused.code and f"backfill {request.id} of copy has not ended" in refused.err
    running = BackfillStatus("copy", request.id, "RUNNING", 3, 6)
    rate = {"id": request.id, "per_s": 1.5, "left_s": 2.0}
    deployed.report([running], backfill=rate)
    (shown,) = deployed.json("--list")["backfills"]
    assert (shown["state"], shown["done"], shown["total"], shown["left_s"]) == ("RUNNING", 3, 6, 2)
    assert "1.5" not in deployed("--list").out and "2/s, 2 s left" in deployed("--list").out
    status = deployed.cli("pipeline", "status", deployed.name, "--deployed")
    assert f"backfill {request.id} of copy: running, 3 of 6 records (50 %)" in status.out

    assert deployed.json("copy", "--cancel")["cancelled"] == request.id
    assert deployed.deployment().backfills[0].cancelled
    deployed.report([BackfillStatus("copy", request.id, "CANCELLED", 3, 6)])
    nothing = deployed("copy", "--cancel")
    assert nothing.code and "no backfill to cancel" in nothing.err
    history = deployed.cli("pipeline", "history", deployed.name).out
    assert "backfill-requested" in history and "backfill-cancel-requested" in history


def test_a_repetition_and_deleted_records_are_stated(deployed: Deployed) -> None:
    deployed.report(began={})
    refused = deployed("copy", "--from", "1d", "--yes")
    assert refused.code and "add --again" in refused.err
    with Admin(deployed.broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(deployed.topic, 0): 3})
    asked = deployed("copy", "--from", "1d", "--again")
    assert asked.code and "7 of these records were read before" in asked.err
    assert "retention deleted the start of this range: the first 3 offsets" in asked.out
    made = deployed.json("copy", "--from", "1d", "--again", "--yes")
    assert (made["records"], made["repeated"], made["deleted"]) == (7, 7, 3)


def test_a_backfill_names_the_flow_of_the_quarantined_rows() -> None:
    """It would drop them without a word otherwise."""
    request = BackfillRequest(0, "views", {}, from_ms=1_000, to_ms=2_000)
    found = Figures({}, 1, 0, 0, 0, 0)
    (_, told) = _texts(request, found, "shop", "views_quarantine")
    assert told.startswith("rows that views quarantines are not written by this backfill")
    assert "penstock pipeline backfill shop views_quarantine with the same range" in told
    assert len(_texts(request, found, "shop", "")) == 1


def test_waiting_ends_with_the_backfill(deployed: Deployed) -> None:
    deployed.report()
    late = deployed("copy", "--from", "1d", "--yes", "--wait", "--timeout", "1")
    assert late.code and "is still running after 1 s, and continues" in late.err
    (request,) = deployed.deployment().backfills
    deployed.report([BackfillStatus("copy", request.id, "COMPLETED", 6, 6)])
    assert deployed.json("--list")["backfills"][0]["state"] == "COMPLETED"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("other", "--from", "1d"), "has no flow other: the flows are copy"),
        (("copy", "--from", "soon"), "--from: 'soon' is not a time"),
        (("copy", "--from", "1d", "--to", "2d"), "is not before --to"),
        (("copy",), "--from is missing"),
        ((), "name the flow"),
        (("--list", "--cancel"), "use --list or --cancel, not both"),
        (("copy", "--from", "1d", "--max-bytes-per-trigger", "x"), "give a size such as 16m"),
    ],
)
def test_what_is_wrong_is_said(deployed: Deployed, words: tuple[str, ...], text: str) -> None:
    deployed.report()
    refused = deployed(*words)
    assert refused.code and text in refused.err


def test_a_flow_that_keeps_state_is_refused(deployed: Deployed) -> None:
    deployed.report(stateful=True)
    refused = deployed("copy", "--from", "1d", "--yes")
    assert refused.code and "--reset copy" in refused.err
