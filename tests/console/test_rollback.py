"""Tests the console's rollback of deployed pipelines over HTTP, without a browser.

The rights that it needs are those of every change: `test_deployment_rights` has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from console.fake_worker import FakeWorker, create_topics, definition, history
from console.running import Answer, Browserless, eventually, running_console
from penstock import Admin, Producer
from penstock.spark.deployments.model import Deployment, KeptGeneration, Recompute
from penstock.testing.broker import Broker
from penstock.testing.slowness import patient

OLD = {"counts": "1:streaming:stateful:s:p:old", "views": "1:streaming:stateless:s:p:d"}
NEW = {"counts": "1:streaming:stateful:s:p:new", "views": "1:streaming:stateless:s:p:d"}
MOVED = {"counts": "1:streaming:stateful:s:other:old", "views": "1:streaming:stateless:s:p:d"}


@pytest.fixture(scope="module")
def bootstrap(penstock_broker: Broker) -> str:
    with Admin(penstock_broker.bootstrap) as admin:
        create_topics(admin)
    return penstock_broker.bootstrap


@pytest.fixture(scope="module")
def visitor(bootstrap: str) -> Iterator[Browserless]:
    with running_console(bootstrap) as url:
        found = Browserless(url)
        assert found.log_in().status == 200
        yield found


@pytest.fixture(scope="module")
def producer(bootstrap: str) -> Iterator[Producer[Any, Any]]:
    with Producer(bootstrap) as opened:
        yield opened


def deployed(producer: Producer[Any, Any], name: str, *flows: dict[str, str]) -> FakeWorker:
    """Deploys a version with each of these flows. The last one runs."""

    def write(topic: str, value: bytes | None, key: bytes) -> None:
        producer.send(topic, value, key=key).result(timeout_s=patient(60))

    worker = FakeWorker(write, name)
    for number, each in enumerate(flows or ({}, {}), 1):
        worker.deploy(number, each)
    return worker


def shown(visitor: Browserless, name: str, version: int) -> dict[str, Any]:
    """Returns the page of the pipeline as soon as the console has read that this version runs."""

    def look() -> dict[str, Any] | None:
        answer = visitor.get(f"/api/deployments/{name}")
        is_known = answer.status == 200 and answer.json["version"] == version
        return answer.json if is_known else None

    page: dict[str, Any] = eventually(look, 60)
    return page


def roll_back(visitor: Browserless, name: str, version: Any, **more: Any) -> Answer:
    body = {"action": "rollback", "version": version, **more}
    return visitor.post(f"/api/change/deployment/{name}", body)


def test_an_earlier_version_becomes_the_current_one(
    visitor: Browserless, producer: Producer[Any, Any], bootstrap: str
) -> None:
    """What is to run is only the version: a stopped pipeline stays stopped. The history says which
    version was left for which."""
    worker = deployed(producer, "plain")
    worker.define(Deployment("plain", 2, 2, wanted="STOPPED"))
    assert shown(visitor, "plain", 2)["wanted"] == "STOPPED"
    assert roll_back(visitor, "plain", 1).json == {"name": "plain"}
    found = definition(bootstrap, "plain")
    assert found is not None
    assert (found.version, found.revision, found.wanted) == (1, 3, "STOPPED")
    event = history(bootstrap, "plain")[-1]
    assert (event.what, event.text) == ("rolled-back", "from version 2 to version 1")
    assert event.version == 1
    assert [each["current"] for each in shown(visitor, "plain", 1)["versions"]] == [False, True]
    # And forward again, to a version that is newer than the current one.
    assert roll_back(visitor, "plain", 2).status == 200
    assert shown(visitor, "plain", 2)["version"] == 2


def test_a_flow_that_does_not_fit_needs_a_decision(
    visitor: Browserless, producer: Producer[Any, Any], bootstrap: str
) -> None:
    """Nothing is changed without one. Both decisions reach the deployment."""
    deployed(producer, "undecided", OLD, NEW)
    changes = shown(visitor, "undecided", 2)["versions"][1]["changes"]
    assert [(each["flow"], each["outcome"]) for each in changes] == [
        ("counts", "not kept"), ("views", "unchanged"),
    ]  # fmt: skip
    refused = roll_back(visitor, "undecided", 1)
    assert refused.status == 400 and "nothing was changed" in refused.error
    assert "counts (it keeps state and its definition changed)" in refused.error
    wrong = roll_back(visitor, "undecided", 1, reset=["counts"], keep=["counts"])
    assert wrong.status == 400 and "counts has both" in wrong.error
    wrong = roll_back(visitor, "undecided", 1, reset=["counts", "none"])
    assert wrong.status == 400 and "there is no such flow" in wrong.error
    unchanged = definition(bootstrap, "undecided")
    assert unchanged is not None and (unchanged.version, unchanged.revision) == (2, 2)
    assert roll_back(visitor, "undecided", 1, reset=["counts"]).status == 200
    found = definition(bootstrap, "undecided")
    assert found is not None
    assert (found.version, found.reset_flows, found.reset_revision) == (1, ["counts"], 3)
    shown(visitor, "undecided", 1)
    assert roll_back(visitor, "undecided", 2, keep=["counts"]).status == 200
    found = definition(bootstrap, "undecided")
    assert found is not None and (found.version, found.reset_flows) == (2, [])


def test_a_checkpoint_in_another_place_cannot_be_kept(
    visitor: Browserless, producer: Producer[Any, Any], bootstrap: str
) -> None:
    deployed(producer, "moved", MOVED, OLD)
    shown(visitor, "moved", 2)
    refused = roll_back(visitor, "moved", 1, keep=["counts"])
    assert refused.status == 400
    assert "the checkpoint of counts cannot be kept" in refused.error
    found = definition(bootstrap, "moved")
    assert found is not None and found.version == 2


def test_kept_tables_come_back_with_their_version(
    visitor: Browserless, producer: Producer[Any, Any], bootstrap: str
) -> None:
    """With their own checkpoints, so no flow needs a decision."""
    worker = deployed(producer, "swapped", OLD, NEW)
    kept = KeptGeneration(0, 1, 3_600_000, worker.now_ms() + 3_600_000)
    worker.define(Deployment("swapped", 3, 2, generation=5, generations=5, kept=kept))
    eventually(
        lambda: shown(visitor, "swapped", 2)["versions"][1]["changes"][0]["outcome"] == "unchanged"
    )
    assert roll_back(visitor, "swapped", 1).status == 200
    found = definition(bootstrap, "swapped")
    assert found is not None and (found.version, found.generation) == (1, 0)
    assert found.kept is not None and found.kept.version == 2
    assert history(bootstrap, "swapped")[-1].text.endswith("with the tables that it computed")


def test_a_flow_that_was_to_begin_again_still_does(
    visitor: Browserless, producer: Producer[Any, Any], bootstrap: str
) -> None:
    """If it was asked for the version that is returned to, or an earlier one. The page says so
    before the rollback."""
    worker = deployed(producer, "pending", NEW, NEW, NEW)
    asked: dict[str, Any] = {
        "reset_flows": ["counts"],
        "reset_versions": {"counts": 2},
        "reset_revision": 4,
    }
    worker.define(Deployment("pending", 4, 3, **asked))

    def pending() -> list[list[bool]]:
        versions = shown(visitor, "pending", 3)["versions"]
        return [[change["pending"] for change in each["changes"]] for each in versions]

    eventually(lambda: pending() == [[True, False], [True, False], [False, False]])
    assert roll_back(visitor, "pending", 2).status == 200
    found = definition(bootstrap, "pending")
    assert found is not None and (found.version, found.reset_flows) == (2, ["counts"])


def test_a_rollback_waits_for_a_recompute(
    visitor: Browserless, producer: Producer[Any, Any], bootstrap: str
) -> None:
    worker = deployed(producer, "recomputed")
    recompute = Recompute(9, 2, ["t"], "manual", 1_000, False, worker.now_ms())
    worker.define(Deployment("recomputed", 3, 2, generations=9, recompute=recompute))
    eventually(lambda: shown(visitor, "recomputed", 2)["recompute"])
    refused = roll_back(visitor, "recomputed", 1)
    assert refused.status == 400 and "is being recomputed with version 2" in refused.error
    found = definition(bootstrap, "recomputed")
    assert found is not None and found.version == 2


@pytest.mark.parametrize(
    ("name", "version", "status", "text"),
    [
        ("wrong", 9, 404, "wrong has no version 9"),
        ("wrong", 2, 400, "wrong is at version 2 already"),
        ("wrong", 0, 400, "version must be a whole number, 1 or more"),
        ("wrong", "1", 400, "version must be a whole number"),
        ("nothing", 1, 404, "there is no deployed pipeline nothing"),
    ],
)
def test_a_version_that_cannot_be_chosen(
    visitor: Browserless,
    producer: Producer[Any, Any],
    name: str,
    version: Any,
    status: int,
    text: str,
) -> None:
    deployed(producer, "wrong")
    shown(visitor, "wrong", 2)
    answer = roll_back(visitor, name, version)
    assert answer.status == status, answer.body
    assert text in answer.error


def test_another_site_cannot_roll_back(
    visitor: Browserless, producer: Producer[Any, Any], bootstrap: str
) -> None:
    """Neither with the cookie alone, nor with the origin of another page."""
    deployed(producer, "guarded")
    shown(visitor, "guarded", 2)
    path, body = "/api/change/deployment/guarded", {"action": "rollback", "version": 1}
    for headers in (
        {"x-csrf-token": ""},
        {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site"},
    ):
        answer = visitor.send("POST", path, body, headers)
        assert answer.status == 403, answer.body
    form = visitor.send("POST", path, body, {"content-type": "text/plain"})
    assert form.status == 400 and "content-type" in form.error
    found = definition(bootstrap, "guarded")
    assert found is not None and found.version == 2


def test_a_read_only_console_does_not_roll_back(
    producer: Producer[Any, Any], bootstrap: str
) -> None:
    deployed(producer, "looked-at")
    with running_console(bootstrap, "--read-only") as url:
        visitor = Browserless(url)
        assert visitor.log_in().status == 200
        shown(visitor, "looked-at", 2)
        refused = roll_back(visitor, "looked-at", 1)
        assert refused.status == 403 and "read-only" in refused.error
    found = definition(bootstrap, "looked-at")
    assert found is not None and found.version == 2
