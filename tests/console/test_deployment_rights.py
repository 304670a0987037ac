"""Tests that the console shows and changes deployed pipelines with the rights of the user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from console.fake_worker import FakeWorker, create_topics
from console.projects import packed, project
from console.running import Browserless, eventually
from console.secured import BOB_PASSWORD, Secured, secured_cluster, signed_in
from penstock import Admin, Producer
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from penstock.spark.deployments import topics
from penstock.testing.slowness import patient

LOOK = (*topics.SETTINGS,)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as found:
        with found.admin() as admin, Producer(found.bootstrap, **found.login()) as producer:
            create_topics(admin)

            def write(topic: str, value: bytes, key: bytes) -> None:
                producer.send(topic, value, key=key).result(timeout_s=patient(60))

            worker = FakeWorker(write, "views")
            worker.deploy()
            worker.report("FAILED", error="it fails")
            worker.log(["a line"])
        yield found


@pytest.fixture(scope="module")
def bob(secured: Secured) -> Iterator[Browserless]:
    with secured.console() as url:
        yield signed_in(url, "bob", BOB_PASSWORD)


def grant(admin: Admin, *operations: AclOperation, kind: ResourceType, names: Any) -> None:
    literal, allow = PatternType.LITERAL, PermissionType.ALLOW
    acls = [
        AclBinding(kind, literal, name, "User:bob", "*", operation, allow)
        for name in names
        for operation in operations
    ]
    assert set(admin.create_acls(acls).values()) == {None}


def test_a_user_sees_and_changes_what_the_brokers_allow(secured: Secured, bob: Browserless) -> None:
    """First nothing, then with the right to see that the topics exist the reason, then the
    pipelines, and at last actions, which name the user in the history."""
    assert bob.get("/api/pipelines").json["deployments"] == []
    assert bob.get("/api/deployments/views").status == 404
    with secured.admin() as admin:
        grant(admin, AclOperation.DESCRIBE, kind=ResourceType.TOPIC, names=LOOK)
        told = eventually(lambda: bob.get("/api/pipelines").json["hidden"], 60)
        assert told.startswith("You may not read __penstock_pipeline")
        grant(admin, AclOperation.READ, kind=ResourceType.TOPIC, names=LOOK)
        found = eventually(lambda: bob.get("/api/pipelines").json["deployments"], 120)
        assert [each["name"] for each in found] == ["views"]
        eventually(lambda: not bob.get("/api/pipelines").json["hidden"], 120)
        refused = bob.post("/api/change/deployment/views", {"action": "restart"})
        assert refused.status == 403
        assert refused.error.startswith("this user may not change views: it needs Write")
        deletion = bob.post("/api/change/delete-deployment/views", {"typed": "views"})
        assert deletion.status == 403
        grant(admin, AclOperation.WRITE, kind=ResourceType.TOPIC, names=LOOK)
        ids = [topics.change_id("views")]
        operations = AclOperation.WRITE, AclOperation.DESCRIBE
        grant(admin, *operations, kind=ResourceType.TRANSACTIONAL_ID, names=ids)
    restart = {"action": "restart"}
    eventually(lambda: bob.post("/api/change/deployment/views", restart).status == 200, 60)
    events = eventually(lambda: _events(bob, "restarted"), 60)
    assert events[0]["by"] == "bob"


def _events(visitor: Browserless, what: str) -> list[dict[str, Any]]:
    found = visitor.get("/api/deployments/views").json["events"]
    return [event for event in found if event["what"] == what]


def test_rows_need_the_right_to_read_the_topics_of_a_table(secured: Secured) -> None:
    """The console refuses to ask for them, also if the user may look at pipelines."""
    with secured.console() as url, secured.admin() as admin:
        everything = [*LOOK, topics.PREVIEWS]
        admin.create_topic(topics.PREVIEWS, configs=topics.PREVIEWS_SETTINGS)
        admin.create_topic("page-views")
        operations = AclOperation.READ, AclOperation.DESCRIBE, AclOperation.WRITE
        grant(admin, *operations, kind=ResourceType.TOPIC, names=everything)
        with Producer(secured.bootstrap, **secured.login()) as producer:

            def write(topic: str, value: bytes, key: bytes) -> None:
                producer.send(topic, value, key=key).result(timeout_s=patient(60))

            worker = FakeWorker(write, "views")
            worker.report("RUNNING")
            visitor = signed_in(url, "bob", BOB_PASSWORD)

            def asked() -> Any:
                worker.report("RUNNING")
                return visitor.post("/api/read/preview/views", {"node": "table:page_views"})

            refused = eventually(lambda: (found := asked()).status == 403 and found, 120)
            assert refused.error.startswith("you may not read page-views")
            for node in ("topic:page-views", "sink:long_views", "flow:send_long"):
                wrong = visitor.post("/api/read/preview/views", {"node": node})
                assert wrong.status == 403, wrong.body
                assert wrong.error.startswith("you may not read ")
            wrong = visitor.post("/api/read/preview/views", {"node": "table:none"})
            assert wrong.status == 400 and "not in the graph" in wrong.error
            reading = AclOperation.READ, AclOperation.DESCRIBE
            grant(admin, *reading, kind=ResourceType.TOPIC, names=["page-views"])
            records = {"node": "topic:page-views"}
            eventually(lambda: visitor.post("/api/read/preview/views", records).status == 200, 60)
            # No worker answers, but now it is asked.
            told = eventually(lambda: (found := asked()).status == 404 and found.error, 120)
            assert "no worker answered" in told or topics.PREVIEWS in told


def test_a_deploy_needs_the_rights_of_the_user(secured: Secured) -> None:
    """Who may look at pipelines may plan one, and a refusal names the rights that are missing. What
    is granted is enough, and the history names the user."""
    pytest.importorskip("yaml", reason='pipelines need PySpark: pip install "penstock[spark]"')
    with secured.console() as url, secured.admin() as admin:
        body, asked = packed(project("of-bob")), {"new": "true"}
        everything = AclOperation.READ, AclOperation.DESCRIBE, AclOperation.WRITE
        grant(admin, *everything, kind=ResourceType.TOPIC, names=LOOK)
        visitor = signed_in(url, "bob", BOB_PASSWORD)
        eventually(lambda: not visitor.get("/api/pipelines").json["hidden"], 120)
        eventually(
            lambda: visitor.upload("/api/read/deploy", body, asked).status == 200,
            120,
        )
        refused = visitor.upload("/api/change/deploy", body, asked)
        assert refused.status == 403, refused.body
        assert refused.error.startswith("this user may not change of-bob: it needs Write")
        assert "penstock-pipeline-of-bob" in refused.error
        ids = [topics.change_id("of-bob")]
        operations = AclOperation.WRITE, AclOperation.DESCRIBE
        grant(admin, *operations, kind=ResourceType.TRANSACTIONAL_ID, names=ids)
        made = eventually(
            lambda: (
                (found := visitor.upload("/api/change/deploy", body, asked)).status == 200
                and found.json
            ),
            60,
        )
        assert made["version"] == 1
        page = "/api/deployments/of-bob"
        found = eventually(lambda: (got := visitor.get(page)).status == 200 and got.json, 60)
        assert found["versions"][0]["deployed_by"] == "bob"


def test_requests_that_are_not_valid_are_refused(secured: Secured) -> None:
    """With one line that says what is wrong."""
    with secured.console() as url:
        visitor = signed_in(url, "admin", secured.admin_password)
        eventually(lambda: visitor.get("/api/pipelines").json["deployments"], 60)
        wrong = visitor.post("/api/change/deployment/views", {"action": "explode"})
        assert wrong.status == 400
        assert wrong.error == (
            "the action must be one of start, stop, restart, rollback, backfill, cancel-backfill, "
            "recompute, cancel-recompute, swap, swap-back, not 'explode'"
        )
        wrong = visitor.post("/api/change/deployment/views", {"action": "rollback", "version": 9})
        assert wrong.status == 404 and "has no version 9" in wrong.error
        assert visitor.post("/api/change/deployment/none", {"action": "stop"}).status == 404


def test_a_read_only_console_changes_nothing(secured: Secured) -> None:
    how = ("--security-protocol", "SASL_SSL", "--ssl-ca", str(secured.folder / "ca.pem"))
    with secured.console(*how, "--sign-in", "SCRAM-SHA-512", "--read-only") as url:
        visitor = signed_in(url, "admin", secured.admin_password)
        eventually(lambda: visitor.get("/api/pipelines").json["deployments"], 60)
        for path, body in (
            ("deployment/views", {"action": "stop"}),
            ("delete-deployment/views", {"typed": "views"}),
        ):
            answer = visitor.post(f"/api/change/{path}", body)
            assert answer.status == 403 and "read-only" in answer.error
