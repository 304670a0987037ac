"""Tests requests for backfills, recomputes and swaps: the rights they need, and bad input."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from console.fake_worker import FakeWorker, create_topics, flow
from console.running import Browserless, eventually
from console.secured import BOB_PASSWORD, Secured, secured_cluster, signed_in
from console.test_deployment_rights import LOOK, grant
from penstock import Producer
from penstock.security.acls import AclOperation, ResourceType
from penstock.spark.deployments import topics
from penstock.testing.slowness import patient

FLOWS = {"page_views": "1:streaming:stateless:s:p:d", "totals": "1:streaming:stateful:s:p:d"}
NODES = [
    {"id": "topic:orders", "kind": "topic", "name": "orders"},
    {"id": "table:page_views", "kind": "table", "name": "page_views", "flow": "page_views"},
    {"id": "table:totals", "kind": "table", "name": "totals", "flow": "totals"},
]
EDGES = [
    {"from": "topic:orders", "to": "table:page_views"},
    {"from": "topic:orders", "to": "table:totals"},
]
VIEW = {"topics": {"orders": 1}, "began": {"orders": {"0": 6}}, "backfilled": {}}
CHANGE, PLAN, CHECK = "/api/change/deployment/", "/api/read/backfill/", "/api/read/recompute/"
FILL: dict[str, Any] = {"flow": "page_views", "from": "1d", "to": "", "again": False}
TABLES: dict[str, Any] = {"tables": ["page_views", "totals"], "swap": "manual", "keep": "1d"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as found:
        with found.admin() as admin, Producer(found.bootstrap, **found.login()) as producer:
            create_topics(admin)

            def write(topic: str, value: bytes, key: bytes | None = None) -> None:
                producer.send(topic, value, key=key).result(timeout_s=patient(60))

            for _ in range(10):
                write("orders", b"x")
            for name, fields in {
                "views": {},
                "elsewhere": {"settings": {"spark.penstock.bootstrap": "192.0.2.1:9092"}},
            }.items():
                worker = FakeWorker(write, name)
                worker.deploy(1, FLOWS, **fields)
                flows = [flow(each, **VIEW, stateful=each == "totals") for each in FLOWS]
                run = {"flows": flows, "graph": {"nodes": NODES, "edges": EDGES}}
                worker.report("STOPPED", run=run)
        yield found


@pytest.fixture(scope="module")
def url(secured: Secured) -> Iterator[str]:
    with secured.console() as found:
        yield found


@pytest.fixture(scope="module")
def ann(secured: Secured, url: str) -> Browserless:
    """An administrator, who sees both pipelines."""
    return known(signed_in(url, "admin", secured.admin_password))


def known(visitor: Browserless) -> Browserless:
    """Waits until the console has read the records of both pipelines."""

    def is_complete() -> bool:
        found = [visitor.get(f"/api/deployments/{name}") for name in ("views", "elsewhere")]
        return all(each.status == 200 and each.json["flows"] for each in found)

    eventually(is_complete, 120)
    return visitor


def test_a_user_plans_and_changes_what_the_brokers_allow(secured: Secured, url: str) -> None:
    """A plan needs the right to describe the topics, and a change that to change pipelines."""
    bob = signed_in(url, "bob", BOB_PASSWORD)
    assert bob.post(f"{PLAN}views", FILL).status == 404
    reading = AclOperation.DESCRIBE, AclOperation.READ
    with secured.admin() as admin:
        grant(admin, *reading, kind=ResourceType.TOPIC, names=LOOK)
        bob = known(signed_in(url, "bob", BOB_PASSWORD))
        for path, body in ((PLAN, FILL), (CHECK, TABLES)):
            refused = bob.post(f"{path}views", body)
            assert refused.status == 403, refused.body
            assert "it needs Describe on orders" in refused.error
        grant(admin, AclOperation.DESCRIBE, kind=ResourceType.TOPIC, names=["orders"])
        plan = eventually(
            lambda: (found := bob.post(f"{PLAN}views", FILL)).status == 200 and found.json, 60
        )
        assert (plan["records"], plan["left_out"], plan["refused"]) == (6, 4, "")
        actions = (
            {"action": "backfill", **FILL},
            {"action": "recompute", **TABLES},
        )
        for action in actions:
            refused = bob.post(f"{CHANGE}views", action)
            assert refused.status == 403, refused.body
            assert refused.error.startswith("this user may not change views: it needs Write")
        grant(admin, AclOperation.WRITE, kind=ResourceType.TOPIC, names=LOOK)
        ids = [topics.change_id("views")]
        writing = AclOperation.WRITE, AclOperation.DESCRIBE
        grant(admin, *writing, kind=ResourceType.TRANSACTIONAL_ID, names=ids)
    made = eventually(
        lambda: (
            (found := bob.post(f"{CHANGE}views", {"action": "backfill", **FILL})).status == 200
            and found.json
        ),
        60,
    )
    assert (made["id"], made["records"]) == (2, 6)
    busy = bob.post(f"{CHANGE}views", {"action": "backfill", **FILL})
    assert busy.status == 400 and "backfill 2 of page_views has not ended" in busy.error
    (shown,) = eventually(lambda: bob.get("/api/deployments/views").json["backfills"], 60)
    assert (shown["state"], shown["requested_by"]) == ("REQUESTED", "bob")
    body = {"action": "cancel-backfill", "flow": "page_views"}
    assert bob.post(f"{CHANGE}views", body).json == {"id": 2}


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        (PLAN, {**FILL, "from": 7}, "from must be a string"),
        (PLAN, {**FILL, "from": ""}, "from: '' is not a time"),
        (PLAN, {**FILL, "to": "later"}, "to: 'later' is not a time"),
        (PLAN, {**FILL, "from": "9" * 30}, "the range must begin in 1970 or later"),
        (PLAN, {**FILL, "from": "999999999w"}, "the range must begin in 1970 or later"),
        (PLAN, {**FILL, "flow": "none"}, "has no flow none"),
        (PLAN, {**FILL, "flow": "totals"}, "keeps state or has a watermark"),
        (CHECK, {**TABLES, "tables": "page_views"}, "tables must be a list of strings"),
        (CHECK, {**TABLES, "tables": []}, "name the tables"),
        (CHECK, {**TABLES, "tables": ["page_views"]}, "add the tables totals"),
        (CHECK, {**TABLES, "tables": ["a"] + [str(n) for n in range(1_001)]}, "at most 1,000"),
        (CHECK, {**TABLES, "swap": "soon"}, "swap must be one of when-caught-up, manual"),
        (CHECK, {**TABLES, "keep": "0d"}, "keep: '0d' is not a duration"),
        (CHANGE, {"action": "cancel-backfill"}, "flow must be a string"),
        (CHANGE, {"action": "cancel-backfill", "flow": "totals"}, "no backfill to"),
        (CHANGE, {"action": "cancel-recompute"}, "no recompute of views is in progress"),
        (CHANGE, {"action": "swap"}, "no recompute of views is in progress"),
        (CHANGE, {"action": "swap-back"}, "no earlier tables of views are kept"),
    ],
)
def test_requests_that_are_not_valid_are_refused(
    ann: Browserless, path: str, body: dict[str, Any], text: str
) -> None:
    """With one line that says what is wrong."""
    answer = ann.post(f"{path}views", body)
    assert answer.status == 400, answer.body
    assert text in answer.error
    assert ann.post(f"{path}none", body).status in (400, 404)


def test_a_pipeline_that_reads_from_another_cluster_is_refused(ann: Browserless) -> None:
    """The login of the user is not sent to an address that a deployment names."""
    for path, body in ((PLAN, FILL), (CHECK, TABLES), (CHANGE, {"action": "backfill", **FILL})):
        answer = ann.post(f"{path}elsewhere", body)
        assert answer.status == 400, answer.body
        assert "reads its topics from 192.0.2.1:9092" in answer.error


def test_a_read_only_console_plans_and_changes_nothing(secured: Secured) -> None:
    with secured.console("--sign-in", "SCRAM-SHA-512", "--read-only") as url:
        visitor = known(signed_in(url, "admin", secured.admin_password))
        assert visitor.post(f"{PLAN}views", FILL).status == 200
        assert visitor.post(f"{CHECK}views", TABLES).status == 200
        for action in (
            {"action": "backfill", **FILL},
            {"action": "cancel-backfill", "flow": "page_views"},
            {"action": "recompute", **TABLES},
            {"action": "cancel-recompute"},
            {"action": "swap"},
            {"action": "swap-back"},
        ):
            answer = visitor.post(f"{CHANGE}views", action)
            assert answer.status == 403 and "read-only" in answer.error


def test_the_console_needs_no_spark() -> None:
    """Nor anything else of the extra of that name."""
    code = (
        "import sys, penstock.console.main, penstock.console.workspace, penstock.console.web\n"
        "print(sorted({'pyspark', 'yaml', 'cronsim', 'pandas'} & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=patient(300),
    )
    assert found.stdout.strip() == "[]"
