"""Tests the parts of `penstock pipeline` that do not need Spark: projects, run events, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.slowness import patient

pytest.importorskip("yaml", reason='pipelines need PySpark: pip install "penstock[spark]"')

from cli.conftest import Runner
from penstock.cli.pipeline_view import batch_text, clock_text, flow_rows
from penstock.spark.pipelines import runner, state_files
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.events import (
    RunView,
    flow_event,
    progress_event,
    topic_offsets,
)
from penstock.spark.pipelines.explain import one_line, short_name
from penstock.spark.pipelines.project import find_project, parse_topics
from penstock.spark.pipelines.scaffold import make_project

STREAM_FAILED = """[STREAM_FAILED] Query [id = 9b7e, runId = 330f] terminated with exception: \
[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source writer: \
penstock.client.errors.OptionError: there is no option tpic: did you mean topic?
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: to_out [id = 9b7e, runId = 330f]
"""
PROGRESS: dict[str, Any] = {
    "batchId": 3,
    "timestamp": "2026-01-31T12:00:01.000Z",
    "numInputRows": 120,
    "processedRowsPerSecond": 61.44,
    "durationMs": {"triggerExecution": 1950},
    "observedMetrics": {
        "penstock.expectations.clicks": {"rows": 120, "has_id": 500, "is_page": 1},
        "of the user": {"rows": 7},
    },
    "sources": [
        {"endOffset": {"clicks": {"0": 70, "1": 50}}},
        {"endOffset": {"logOffset": 4}},
    ],
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Creates projects in a temporary directory and keeps their state
    there, not in the user's home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # No broker answers there: a test must not create topics on a broker that happens to run here.
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", "127.0.0.1:9")
    yield tmp_path


def test_init_creates_a_project_that_is_found_again(penstock: Runner, tmp_path: Path) -> None:
    """With a source, a table, an aggregate, a sink, and sample data."""
    ended = penstock("pipeline", "init", "views", "--bootstrap", "broker:1234")
    assert ended.code == 0
    assert "generate.py" in ended.out and "penstock pipeline run" in ended.out
    project = find_project(tmp_path / "views" / "transformations")
    assert (project.name, project.bootstrap) == ("views", "broker:1234")
    assert project.topics == {"views-page-views": 3, "views-long-views": 1}
    texts = "".join(path.read_text() for path in (tmp_path / "views").rglob("*.*"))
    for part in ("@dp.table", "CREATE MATERIALIZED VIEW", "dp.create_sink", "@dp.append_flow"):
        assert part in texts
    for file in (tmp_path / "views").rglob("*.py"):
        compile(file.read_text(), str(file), "exec")


def test_init_overwrites_nothing(penstock: Runner, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("kept")
    ended = penstock("pipeline", "init", "mine")
    assert ended.code == 2 and "already exists" in ended.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]
    assert penstock("pipeline", "init", "../up").code == 2


def test_list_and_status_before_any_run(penstock: Runner, tmp_path: Path) -> None:
    assert "no pipelines yet" in penstock("pipeline", "list").out
    penstock("pipeline", "init", "views")
    listed = penstock("pipeline", "list", "--json").json["pipelines"]
    assert listed == [
        {"name": "views", "path": str(tmp_path / "views"), "state": "NEVER RUN", "updated_ms": None}
    ]
    assert "never run" in penstock("pipeline", "status", "views").out


def test_status_shows_the_last_run(penstock: Runner, tmp_path: Path) -> None:
    """As the events reported it. If the runner is gone without an end event, the
    run is shown as interrupted."""
    penstock("pipeline", "init", "views")
    view = RunView("views")
    for event in (
        {"event": "round", "number": 2},
        {"event": "flow", "flow": "clicks", "status": "RUNNING"},
        progress_event("spark_catalog.default.clicks", PROGRESS),
        {"event": "lag", "flow": "clicks", "lag": 7},
    ):
        view.apply(event)
    saved = {
        **view.as_dict(),
        "pid": os.getpid(),
        "master": "local[*]",
        "started_ms": 0,
        "updated_ms": 1000,
    }
    state_files.save_run(tmp_path / "views", saved)
    shown = penstock("pipeline", "status", "views")
    assert "views  running  round 2  on local[*]" in shown.out
    assert "clicks" in shown.out and "#3: 120 rows" in " ".join(shown.out.split())
    state_files.save_run(tmp_path / "views", {**saved, "pid": 2**22 + 1})
    assert penstock("pipeline", "status", "views", "--json").json["state"] == "INTERRUPTED"
    assert penstock("pipeline", "list", "--json").json["pipelines"][0]["state"] == "INTERRUPTED"
    (tmp_path / "views" / "spark-pipeline.yml").unlink()
    assert penstock("pipeline", "list", "--json").json["pipelines"] == []


def test_generating_page_views_without_a_broker_fails_in_one_line(tmp_path: Path) -> None:
    """The generator is a new user's second command."""
    make_project(tmp_path, "views", "127.0.0.1:9")
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "views" / "generate.py")],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
        env={**os.environ, "PENSTOCK_BOOTSTRAP": "127.0.0.1:9"},
    )
    assert ended.returncode == 1
    assert ended.stderr == "generate.py: cannot connect to 127.0.0.1:9: connection refused\n"


def test_a_second_run_of_a_project_is_refused(tmp_path: Path) -> None:
    make_project(tmp_path, "views", "localhost:9092")
    state_files.save_run(tmp_path / "views", {"state": "RUNNING", "pid": os.getpid()})
    from penstock.runtime import SystemClock

    run = runner.Run(find_project(tmp_path / "views"), runner.RunOptions(), SystemClock())
    with pytest.raises(PipelineError, match="is already running"):
        next(run.events())


def test_a_folder_without_a_project_is_reported_in_one_line(penstock: Runner) -> None:
    for command in ("run", "dry-run", "status"):
        ended = penstock("pipeline", command)
        assert ended.code == 2 and ended.err.count("\n") == 1
        assert "penstock pipeline init NAME" in ended.err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name: [", "is not YAML"),
        ("- a", "must be a mapping of settings"),
        ("storage: x", "has no name"),
        ("name: x\nconfiguration: 3", "configuration must be settings"),
        ("name: x\nconfiguration:\n  a.b: 3", "a.b must be text"),
    ],
)
def test_an_invalid_spec_is_reported_in_one_line(
    penstock: Runner, tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "spark-pipeline.yml").write_text(text)
    ended = penstock("pipeline", "status")
    assert ended.code == 2 and ended.err.count("\n") == 1 and reason in ended.err


def test_missing_java_is_reported_in_one_line(
    penstock: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    penstock("pipeline", "init", "views")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = penstock("pipeline", "run", "views")
    assert ended.code == 2 and ended.err.count("\n") == 1
    assert "Spark needs Java 17 or newer, but no Java was found: install it" in ended.err


def test_old_java_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_292\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match=r"bin/java is 1\.8\.0_292: .* JAVA_HOME"):
        runner.check_spark()


def test_an_unreachable_broker_is_reported_in_one_line(
    penstock: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a JVM is started."""
    monkeypatch.setattr(runner, "check_spark", lambda: None)
    penstock("pipeline", "init", "views")
    ended = penstock("pipeline", "run", "views", "--bootstrap", "127.0.0.1:1")
    assert ended.code == 2 and ended.err.count("\n") == 1
    assert "to start a broker: penstock up" in ended.err


@pytest.mark.parametrize(
    ("text", "topics"),
    [("", {}), ("a", {"a": 1}), (" a:3, b ,", {"a": 3, "b": 1})],
)
def test_topics_of_a_project_are_parsed(text: str, topics: dict[str, int]) -> None:
    assert parse_topics(text) == topics


@pytest.mark.parametrize("text", ["a:0", ":3", "a:x"])
def test_invalid_topics_are_refused(text: str) -> None:
    with pytest.raises(PipelineError, match=r"name:partitions"):
        parse_topics(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (STREAM_FAILED, "there is no option tpic: did you mean topic?"),
        (
            "[TABLE_OR_VIEW_NOT_FOUND] The table `x` cannot be found. SQLSTATE: 42P01\n'Project",
            "The table `x` cannot be found. [TABLE_OR_VIEW_NOT_FOUND]",
        ),
        ("Traceback (most recent call last):\n  File x\nKeyError: 'a'\n", "KeyError: 'a'"),
        ("something odd\nand more", "something odd"),
        ("", "failed without an error message"),
    ],
)
def test_errors_are_shortened_to_one_line(text: str, line: str) -> None:
    assert one_line(text) == line


def test_a_very_long_error_is_cut() -> None:
    assert len(one_line("x" * 5_000)) == 400


def test_sparks_messages_about_flows_are_parsed() -> None:
    """A message becomes a flow and a status; a failure includes its reason."""
    assert flow_event("Flow spark_catalog.default.clicks is RUNNING.") == {
        "event": "flow",
        "flow": "clicks",
        "status": "RUNNING",
    }
    failed = flow_event(f"Flow 'to_out' has FAILED.\nError: {STREAM_FAILED}")
    assert failed is not None and failed["status"] == "FAILED"
    assert failed["error"] == "there is no option tpic: did you mean topic?"
    unresolved = flow_event(
        "Failed to resolve flow: 'a.b.counts'.\nError: [NO_COLUMN] no x.\n'Plan"
    )
    assert unresolved is not None and unresolved["flow"] == "counts"
    assert (unresolved["status"], unresolved["error"]) == ("FAILED", "no x. [NO_COLUMN]")
    assert flow_event("Run is COMPLETED.") is None
    assert short_name("`a`.`b`.`c`") == "c"


def test_progress_is_reduced_to_what_is_shown() -> None:
    """Only offsets of topics are used as offsets."""
    event = progress_event("a.b.clicks", PROGRESS)
    assert event == {
        "event": "progress",
        "flow": "clicks",
        "batch": 3,
        "at": "2026-01-31T12:00:01.000Z",
        "rows": 120,
        "rows_per_s": 61.4,
        "duration_ms": 1950,
        "input_per_s": 0.0,
        "watermark": "",
        "state_rows": 0,
        "state_bytes": 0,
        "violations": {"has_id": 500, "is_page": 1},
        "checked": 120,
        "output_rows": None,
        "skew": None,
        "offsets": {"clicks": {"0": 70, "1": 50}},
    }
    assert json.loads(json.dumps(event)) == event
    assert progress_event("x", {"processedRowsPerSecond": float("nan")})["rows_per_s"] == 0.0
    assert topic_offsets(None) == topic_offsets({"logOffset": 3}) == topic_offsets("5") == {}


def test_a_view_accumulates_events() -> None:
    """Rows are added over batches, the last batch with rows is kept, and so is a failure."""
    view = RunView("views")
    view.apply({"event": "round", "number": 1})
    view.apply({"event": "flow", "flow": "counts", "status": "COMPLETED"})
    view.apply(progress_event("clicks", PROGRESS))
    view.apply(progress_event("clicks", {**PROGRESS, "batchId": 4, "numInputRows": 30}))
    view.apply(progress_event("clicks", {**PROGRESS, "batchId": 5, "numInputRows": 0}))
    view.apply({"event": "flow", "flow": "clicks", "status": "FAILED", "error": "why"})
    view.apply({"event": "end", "state": "FAILED", "error": "all of it"})
    assert (view.state, view.error) == ("FAILED", "all of it")
    clicks = view.flows["clicks"]
    assert (clicks.rows, clicks.batch, clicks.batch_rows, clicks.error) == (150, 4, 30, "why")
    rows = flow_rows(view.as_dict()["flows"])
    assert rows[0] == ("counts", "completed", None, None, None, "-", "-")
    assert rows[1][:6] == ("clicks", "failed", 150, 61, None, "has_id 1,000, is_page 2")
    shown = view.as_dict()["flows"][1]
    assert batch_text(shown) == "#4: 30 rows in 1.9 s at 12:00:01"
    assert batch_text({**shown, "skew": 1.5}) == batch_text(shown)
    assert batch_text({**shown, "skew": 7.25}).endswith("12:00:01, skew 7.2")
    both = {**shown, "skew": 2.0, "task_skew": 9.0}
    assert batch_text(both).endswith("12:00:01, skew 2.0, task skew 9.0")
    assert clock_text("never") == "never"
