"""Tests `penstock pipeline init`, `templates` and `test`, without Spark."""

from __future__ import annotations

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
from penstock import Admin
from penstock.spark.pipelines import project_tests
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.project import find_project
from penstock.spark.pipelines.scaffold import make_project
from penstock.spark.pipelines.templates import TEMPLATES
from penstock.testing import Broker


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Projects and their list are in a temporary directory. By default no broker answers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", "127.0.0.1:9")
    yield tmp_path


def test_init_and_generate_create_topics_with_their_partitions(
    penstock: Runner, tmp_path: Path, penstock_broker: Broker
) -> None:
    """`generate.py` may be the first to send: it must not leave that to the broker's default."""
    bootstrap = penstock_broker.bootstrap
    made = penstock("pipeline", "init", "first", "-b", bootstrap, "--template", "change-data")
    assert made.code == 0 and "created topic first-customer-changes" in made.out
    make_project(tmp_path, "second", bootstrap)
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "second" / "generate.py"), "--count", "5"],
        capture_output=True,
        text=True,
        timeout=patient(100),
        check=False,
        env={**os.environ, "PENSTOCK_BOOTSTRAP": bootstrap},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "sent 5 page views to second-page-views\n"
    with Admin(bootstrap) as admin:
        for name in ("first", "second"):
            topics = find_project(tmp_path / name).topics
            described: dict[str, Any] = dict(admin.describe_topics(list(topics)))
            assert {topic: len(described[topic].partitions) for topic in topics} == topics


def test_init_without_a_broker_says_so_in_one_line(penstock: Runner) -> None:
    made = penstock("pipeline", "init", "views")
    assert made.code == 0
    assert (
        made.out.count("created no topics, the first run will: cannot connect to 127.0.0.1:9") == 1
    )
    assert penstock("pipeline", "init", "more", "--json").json["topics"] == []


def test_templates_are_listed_and_unknown_ones_refused(penstock: Runner) -> None:
    listed = penstock("pipeline", "templates", "--json").json["templates"]
    assert [each["name"] for each in listed] == list(TEMPLATES)
    assert all(name in penstock("pipeline", "templates").out for name in TEMPLATES)
    refused = penstock("pipeline", "init", "x", "--template", "nothing")
    assert refused.code == 2 and "there is no template nothing: use one of click" in refused.err


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_is_a_whole_project(template: str, tmp_path: Path) -> None:
    """It has definitions, a generator, tests and a README, and no placeholder is left."""
    written = make_project(tmp_path, "shop", "b:1", template)
    names = {str(path.relative_to(tmp_path / "shop")) for path in written}
    assert {"README.md", "generate.py", "tests/test_pipeline.py", "spark-pipeline.yml"} <= names
    for path in written:
        text = path.read_text()
        assert "$" not in text, path
        if path.suffix == ".py":
            compile(text, str(path), "exec")
    topics = find_project(tmp_path / "shop").topics
    assert topics and all(topic.startswith("shop-") for topic in topics)


def test_arguments_after_two_hyphens_are_passed_on_to_pytest(
    penstock: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is that of pytest."""
    monkeypatch.setattr(project_tests, "check_spark", lambda: None)
    make_project(tmp_path, "views", "b:1")
    (tmp_path / "views/tests/test_pipeline.py").write_text(
        "def test_good(penstock_pipeline_project):\n"
        "    assert penstock_pipeline_project.name == 'tests'\n\n\n"
        "def test_bad():\n    assert 1 == 2\n"
    )
    assert penstock("pipeline", "test", "views", "--", "-q", "-k", "good").code == 0
    monkeypatch.chdir(tmp_path / "views")
    assert penstock("pipeline", "test", "--", "-q", "-k", "bad").code == 1


def test_the_settings_of_a_project_around_it_do_not_apply(
    penstock: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a clone of Penstock, whose settings need plugins of pytest."""
    monkeypatch.setattr(project_tests, "check_spark", lambda: None)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-config\nno_such_option = 1\n"
    )
    make_project(tmp_path, "views", "b:1")
    (tmp_path / "views/tests/test_pipeline.py").write_text("def test_good():\n    pass\n")
    assert penstock("pipeline", "test", "views", "--", "-q").code == 0
    (tmp_path / "views/pytest.ini").unlink()
    assert penstock("pipeline", "test", "views", "--", "-q").code != 0


def test_a_project_without_tests_is_reported(penstock: Runner, tmp_path: Path) -> None:
    make_project(tmp_path, "views", "b:1")
    (tmp_path / "views/tests/test_pipeline.py").unlink()
    ended = penstock("pipeline", "test", "views")
    assert ended.code == 2 and ended.err.count("\n") == 1
    assert "views has no tests: write them into" in ended.err and "penstock_pipeline" in ended.err


def test_missing_java_and_pytest_are_reported(
    penstock: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_project(tmp_path, "views", "b:1")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = penstock("pipeline", "test", "views")
    assert ended.code == 2 and "Spark needs Java 17 or newer, but no Java was found" in ended.err
    monkeypatch.setattr(project_tests, "find_spec", lambda _name: None)
    with pytest.raises(PipelineError, match="need pytest: pip install pytest"):
        project_tests.check_tests(find_project(tmp_path / "views"))


def test_the_documentation_lists_the_templates() -> None:
    page = (Path(__file__).parents[2] / "docs" / "SPARK.md").read_text("utf-8")
    for each in TEMPLATES.values():
        assert f"| `{each.name}` | {each.summary} |\n" in page
