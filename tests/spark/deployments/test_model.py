"""Tests the records of deployed pipelines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.spark.deployments.model import (
    NAME,
    Deployment,
    Event,
    Schedule,
    Status,
    Version,
    WorkerStatus,
    decode,
    encode,
)

RECORDS = (
    Version("views", 3, "project", "spark-pipeline.yml", "ab" * 32, 1200, flows={"clicks": "f1"}),
    Deployment("views", 7, 3, schedule=Schedule(every_s=600.0), secrets=["DB"], restarts=2),
    Status("views", "BACKING OFF", 7, 3, failures=2, run={"flows": [{"name": "clicks"}]}),
    Event("views", 5, "failed", "the table is gone", 3, "w1"),
    WorkerStatus("w1", "box", "s1", 5, 6, ["views"]),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda each: type(each).__name__)
def test_a_record_is_read_as_it_was_written(record: Any) -> None:
    assert decode(type(record), encode(record)) == record


def test_a_field_of_a_newer_version_is_ignored() -> None:
    content = json.loads(encode(RECORDS[3])) | {"colour": "red"}
    assert decode(Event, json.dumps(content).encode()) == RECORDS[3]


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"name": "views"}',
        b"\xff",
        b"[" * 5000,
        encode(RECORDS[1]).replace(b'"RUNNING"', b'"DANCING"'),
        encode(RECORDS[1]).replace(b'"revision":7', b'"revision":"7"'),
    ],
)
def test_what_is_not_a_deployment_is_skipped(data: bytes | None) -> None:
    assert decode(Deployment, data) is None


@pytest.mark.parametrize("name", ["views", "a", "crm-2.daily", "a" * 64])
def test_a_name_may_be(name: str) -> None:
    assert NAME.fullmatch(name)


@pytest.mark.parametrize("name", ["", "Views", "a/b", "../x", "-a", "a-", "a" * 65, "a b", "a\n"])
def test_a_name_may_not_be(name: str) -> None:
    assert not NAME.fullmatch(name)
