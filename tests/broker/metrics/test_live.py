"""A real broker process: its metrics, its health and its log, as an operator sees them."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from penstock.broker.metrics.names import METRICS, Kind
from penstock.cli.broker_files import metrics_url
from penstock.testing import Broker
from penstock.testing.slowness import patient


def get(url: str, path: str) -> bytes:
    with urllib.request.urlopen(f"{url}{path}", timeout=patient(120)) as answer:
        data: bytes = answer.read()
        return data


def test_a_broker_process_exports_metrics_health_and_json_logs(tmp_path: Path) -> None:
    """`broker.json` in the data directory has the address of the metrics."""
    settings = {"log_format": "json", "metrics": "127.0.0.1:0"}
    with Broker(settings, data=str(tmp_path)) as broker:
        url = metrics_url(str(tmp_path))
        assert url is not None
        assert json.loads(get(url, "/health/ready"))["ready"] is True
        broker.new_topic(name="orders")
        families = {
            family.name: family
            for family in text_string_to_metric_families(get(url, "/metrics").decode())
        }
        lines = [json.loads(line) for line in broker.output().splitlines()]
    for metric in METRICS:
        name = metric.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.name
        assert name in families
    topics = {sample.labels["topic"] for sample in families["penstock_log_size_bytes"].samples}
    assert "orders" in topics
    events = [line.get("event") for line in lines]
    assert {"controller_change", "broker_joined", "topic_created"} <= set(events)
    assert all(line["broker"] == 0 and line["level"] and line["time"] for line in lines)
