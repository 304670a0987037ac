"""Tests what a change of a deployment does with flows that are still to begin again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.spark.deployments import change_plan
from penstock.spark.deployments.catalog_view import CatalogView
from penstock.spark.deployments.change_plan import Change, NewVersion, given_up_text, revised
from penstock.spark.deployments.generations import RecomputeOrder, begun, rolled_back
from penstock.spark.deployments.model import Deployment, Status, decode, encode

NOW = Change("ann", 1_794_976_340_000)
ORDER = RecomputeOrder(("copied",), "when-caught-up", 1000)


def deployed(old: Deployment, version: int, *reset: str, keep: tuple[str, ...] = ()) -> Deployment:
    """Deploys a version, with flows that begin again."""
    view = CatalogView()
    view.deployments["views"] = old
    plan = NewVersion(
        "views", "project", "x", b"1", reset_flows=reset, kept_flows=keep, expected_version=0
    )
    return change_plan.planned(view, plan, version, NOW)


def returned(old: Deployment, version: int, *reset: str, keep: tuple[str, ...] = ()) -> Deployment:
    """What a worker or a person does to go back."""
    wanted = rolled_back(old, version, NOW.at_ms)
    return revised(old, wanted, None, reset, NOW, keep=keep)


FIRST = Deployment("views", 1, 5)


def test_a_rollback_lets_no_flow_begin_again_for_the_version_that_failed() -> None:
    failed = deployed(FIRST, 6, "copied")
    assert failed.reset_flows == ["copied"]
    back = returned(failed, 5)
    assert (back.version, back.reset_flows) == (5, [])
    assert "copied" in given_up_text(failed, back, None)


def test_a_rollback_keeps_what_was_asked_for_the_version_that_it_takes() -> None:
    asked = deployed(FIRST, 6, "copied")
    failed = deployed(asked, 7, "counted")
    assert failed.reset_flows == ["copied", "counted"]
    back = returned(failed, 6)
    assert back.reset_flows == ["copied"] and back.reset_versions == {"copied": 6}
    assert back.reset_revision == failed.reset_revision, "the worker has not done it"
    assert given_up_text(failed, back, None).endswith("(counted)")
    # The next rollback leaves the version for which it was asked.
    assert returned(back, 5).reset_flows == []


def test_a_rollback_performs_what_is_asked_for_with_it() -> None:
    failed = deployed(FIRST, 6, "copied")
    back = returned(failed, 5, "counted")
    assert back.reset_flows == ["counted"] and back.reset_revision == back.revision
    # The way forward again leaves version 5, for which it was asked.
    assert returned(back, 6).reset_flows == []


def test_what_is_pending_in_an_old_record_was_meant_for_its_version() -> None:
    old = Deployment("views", 3, 6, reset_flows=["copied"], reset_revision=3)
    assert returned(old, 5).reset_flows == []
    assert deployed(old, 7).reset_flows == ["copied"]


def test_a_new_version_takes_over_what_is_pending_unless_the_flow_is_kept() -> None:
    asked = deployed(FIRST, 6, "copied", "counted")
    new = deployed(asked, 7, keep=("copied",))
    assert new.reset_flows == ["counted"] and new.reset_versions == {"counted": 6}
    assert decode(Deployment, encode(new)) == new


def test_what_was_done_is_not_pending() -> None:
    asked = deployed(FIRST, 6, "copied")
    status = Status("views", "RUNNING", 2, 6, reset_revision=asked.reset_revision)
    back = revised(asked, replace(asked, version=5), status, (), NOW)
    assert back.reset_flows == [] and not given_up_text(asked, back, status)


@pytest.mark.parametrize(("computes", "is_left"), [(6, False), (7, True)])
def test_a_rollback_ends_the_recompute_of_the_version_that_failed(
    computes: int, is_left: bool
) -> None:
    """Otherwise the swap would bring it back."""
    failed = begun(replace(FIRST, version=6), computes, ORDER, NOW.at_ms)
    back = returned(failed, 5)
    assert back.version == 5 and (back.recompute is not None) is is_left
    assert ("the recompute" in given_up_text(failed, back, None)) is not is_left
