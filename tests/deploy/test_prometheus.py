"""Scrape configuration, alert rules and dashboard, checked with promtool and our metric names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.process_collector import ProcessCollector

from deploy.files import DEPLOY, document
from penstock.broker.metrics import names as broker_names
from penstock.broker.metrics.names import Kind
from penstock.spark.deployments.metrics import names as worker_names
from penstock.testing.slowness import patient

PROMETHEUS = DEPLOY / "prometheus"
BY_NAME = {**broker_names.BY_NAME, **worker_names.BY_NAME}
PROMTOOL = shutil.which("promtool")
NAME = re.compile(r"\b(?:penstock|process)_[a-z_]+\b")
OUTSIDE = {"cluster", "instance", "job", "le"}
"""Labels that Prometheus or the scrape configuration adds."""
ASKED_FOR = {
    "PenstockConsumerLagGrows",
    "PenstockBrokerDown",
    "PenstockDiskFullInHours",
    "PenstockBelowMinimumInSync",
    "PenstockHangingTransaction",
    "PenstockOfflinePartitions",
    "PenstockQueueGrows",
    "PenstockQueueOld",
    "PenstockQueueRedelivers",
    "PenstockQueueWithoutWorkers",
    "PenstockNoWorker",
    "PenstockPipelineFailed",
    "PenstockPipelineFailsOften",
    "PenstockPipelineLagGrows",
    "PenstockPipelineWatermarkStuck",
    "PenstockBackfillStuck",
    "PenstockRecomputeStuck",
    "PenstockExpectationsFail",
    "PenstockPipelineDeadLetters",
}


def rules() -> list[dict[str, Any]]:
    found = document("prometheus/penstock-alerts.yml")
    return [rule for group in found["groups"] for rule in group["rules"]]


def dashboard() -> Any:
    return json.loads((DEPLOY / "grafana" / "penstock.json").read_text("utf-8"))


def expressions() -> Iterator[str]:
    for rule in rules():
        yield rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here: apt-get install prometheus")
@pytest.mark.parametrize(
    "command",
    [
        # Only the syntax: the file with the token exists where Prometheus runs.
        ("check", "config", "--syntax-only", "prometheus.yml"),
        ("check", "rules", "penstock-alerts.yml"),
        ("test", "rules", "penstock-alerts-test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts_configuration_and_rules(command: tuple[str, ...]) -> None:
    """The syntax is valid, and each alert fires when it should and not before."""
    ended = subprocess.run(
        [PROMTOOL or "", *command],
        cwd=PROMETHEUS,
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_alert_has_a_description_and_a_rule_test() -> None:
    """The required alerts exist, and each is in the rule tests."""
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    assert set(names) >= ASKED_FOR
    tried = (PROMETHEUS / "penstock-alerts-test.yml").read_text("utf-8")
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert {"summary", "description"} <= rule["annotations"].keys()
        assert rule["alert"] in tried


def exported() -> set[str]:
    """Returns every name that a sample of a scrape can have."""
    names = set()
    for name, metric in BY_NAME.items():
        if metric.kind is Kind.HISTOGRAM:
            names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
        else:
            names.add(name)
    for family in ProcessCollector(registry=None).collect():
        names |= {sample.name for sample in family.samples}
    return names


def test_every_metric_in_rules_and_dashboard_is_exported() -> None:
    """In rules and dashboard; the rule tests name no others."""
    known = exported()
    text = (PROMETHEUS / "penstock-alerts-test.yml").read_text("utf-8")
    series = re.findall(r"series: '([a-z_]+)\{", text)
    used = {name for expression in expressions() for name in NAME.findall(expression)}
    assert used - known == set()
    assert set(series) - known == {"up"}


def test_every_label_in_an_expression_exists() -> None:
    """The labels in `by (...)` and in selectors are labels of the metric."""
    for expression in expressions():
        names = [re.sub("_(bucket|sum|count)$", "", each) for each in NAME.findall(expression)]
        known = OUTSIDE.union(*(BY_NAME[each].labels for each in names if each in BY_NAME))
        summed = re.findall(r"by \(([^)]*)\)", expression)
        chosen = re.findall(r"(\w+)\s*(?:=~|!=|=)\s*\"", expression)
        used = {label.strip() for labels in summed for label in labels.split(",")} | {*chosen}
        assert used <= known, expression


def test_every_metric_is_on_the_dashboard() -> None:
    """Except a few whose history is not useful."""
    shown = {
        re.sub("_(bucket|sum|count)$", "", name)
        for expression in expressions()
        for name in NAME.findall(expression)
    }
    left_out = {
        "penstock_build_info",
        "penstock_broker_info",
        "penstock_cleaner_runs_total",
        "penstock_cleaner_seconds_total",
        "penstock_large_batches_total",
        "penstock_large_batches_waiting",
        "penstock_scrape_duration_seconds",
        "penstock_worker_info",
    }
    assert set(BY_NAME) - shown <= left_out


def test_panels_do_not_overlap() -> None:
    """Each has a unique id, and no two overlap."""
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_prometheus_scrapes_the_brokers_of_the_compose_file() -> None:
    """Each broker by its name, at the port in its configuration."""
    (job,) = document("prometheus/prometheus.yml")["scrape_configs"]
    (static,) = job["static_configs"]
    services = document("docker/compose.yml")["services"]
    brokers = [name for name in services if name.startswith("broker-")]
    assert static["targets"] == [f"{name}:9404" for name in brokers]
    token_file = job["authorization"]["credentials_file"]
    for name in brokers:
        command = services[name]["command"]
        assert "--set=metrics=0.0.0.0:9404" in command
        assert f"--set=metrics_token_file={token_file}" in command
    for name in (*brokers, "prometheus"):
        assert [f"/run/secrets/{each}" for each in services[name]["secrets"]] == [token_file]
    assert set(static["labels"]) == {"cluster"}


def test_rule_files_are_where_the_configuration_expects_them() -> None:
    for name in document("prometheus/prometheus.yml")["rule_files"]:
        assert Path(PROMETHEUS, name).is_file()
