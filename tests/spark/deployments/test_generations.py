"""Tests the changes of a deployment about generations of tables, and their folders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.spark.deployments import change_plan, generation_folders
from penstock.spark.deployments.catalog_errors import ChangeConflict
from penstock.spark.deployments.catalog_view import CatalogView
from penstock.spark.deployments.change_plan import Change, NewVersion
from penstock.spark.deployments.checkpoint_offsets import Read, behind, read_offsets
from penstock.spark.deployments.generations import (
    RecomputeOrder,
    begun,
    cancelled,
    dead_generations,
    expired,
    generation_storage,
    has_sound_generations,
    recomputing,
    rolled_back,
    swap_asked,
    swapped,
    swapped_back,
    used_versions,
)
from penstock.spark.deployments.model import Deployment, KeptGeneration, Status, decode, encode
from penstock.spark.deployments.rollback import asked_rollback
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.stream_position import Position, position_to_spark
from penstock.topic_partition import TopicPartition

AT_MS = 1_794_976_340_000
ORDER = RecomputeOrder(("copied",), "manual", 1000)
FIRST = 20_261_118_043_220
"""The generation that begins at AT_MS."""
OLD = Deployment("views", 5, 1)


def computing() -> Deployment:
    return begun(OLD, 2, ORDER, AT_MS)


def served() -> Deployment:
    return swapped(computing(), FIRST, AT_MS)


def test_a_recompute_changes_nothing_of_what_runs() -> None:
    new = computing()
    assert replace(new, recompute=None, generations=0) == OLD
    assert new.recompute is not None
    assert (new.recompute.generation, new.recompute.version) == (FIRST, 2)
    assert has_sound_generations(new)
    assert decode(Deployment, encode(new)) == new


def test_its_driver_has_another_version_and_storage() -> None:
    new = recomputing(computing())
    assert new is not None
    assert (new.version, new.generation, new.recompute) == (2, FIRST, None)
    assert (
        generation_storage("s3://bucket/views/", FIRST) == f"s3://bucket/views/_generations/{FIRST}"
    )
    assert generation_storage("/data/views", 0) == "/data/views"
    assert recomputing(OLD) is None


def test_a_swap_and_the_way_back() -> None:
    new = served()
    assert (new.version, new.generation, new.recompute) == (2, FIRST, None)
    assert new.kept == KeptGeneration(0, 1, 1000, AT_MS + 1000)
    assert used_versions(new) == {1, 2}
    back = swapped_back(new, AT_MS + 500)
    assert (back.version, back.generation) == (1, 0)
    assert back.kept == KeptGeneration(FIRST, 2, 1000, AT_MS + 1500)
    again = swapped_back(back, AT_MS + 600)
    assert (again.version, again.generation) == (2, FIRST)


def test_a_swap_that_comes_late_changes_nothing() -> None:
    """It was decided before someone cancelled the recompute, or for an earlier one."""
    gone = cancelled(computing())
    assert swapped(gone, FIRST, AT_MS) == gone
    next_one = begun(gone, 3, ORDER, AT_MS)
    assert next_one.recompute is not None
    assert next_one.recompute.generation == FIRST + 1, "numbers are not used again"
    assert swapped(next_one, FIRST, AT_MS) == next_one


def test_old_tables_are_given_up_when_their_time_has_come() -> None:
    new = served()
    assert expired(new, AT_MS + 999) == new
    assert expired(new, AT_MS + 1000).kept is None
    with pytest.raises(PipelineError, match="no earlier tables of views are kept"):
        swapped_back(expired(new, AT_MS + 1000), AT_MS)


@pytest.mark.parametrize("change", [cancelled, swap_asked])
def test_without_a_recompute_there_is_nothing_to_change(change: object) -> None:
    assert callable(change)
    with pytest.raises(PipelineError, match="no recompute of views is in progress"):
        change(OLD)


def test_one_recompute_at_a_time() -> None:
    with pytest.raises(PipelineError, match="penstock pipeline recompute views --cancel"):
        begun(computing(), 3, ORDER, AT_MS)
    with pytest.raises(PipelineError, match="is being recomputed"):
        swapped_back(begun(served(), 3, ORDER, AT_MS), AT_MS)


def test_a_version_that_is_rolled_back_by_itself_takes_its_tables_along() -> None:
    """Its code does not fit to the checkpoints of the other one."""
    assert rolled_back(served(), 1, AT_MS).generation == 0
    assert rolled_back(replace(served(), version=3), 2, AT_MS).generation == FIRST


def test_a_rollback_that_a_person_asks_for_takes_kept_tables_along() -> None:
    change, text = asked_rollback(served(), 1, AT_MS)
    assert (change(served()).version, change(served()).generation) == (1, 0)
    assert text == "from version 2 to version 1, with the tables that it computed"
    later = replace(served(), version=3)
    change, text = asked_rollback(later, 2, AT_MS)
    assert (change(later).version, change(later).generation) == (2, FIRST)
    assert text == "from version 3 to version 2"


def test_a_rollback_is_refused_if_the_tables_have_expired_since_it_was_planned() -> None:
    """Other checkpoints would be used than those that were compared."""
    change, _ = asked_rollback(served(), 1, AT_MS)
    changed = (
        expired(served(), AT_MS + 1000),
        replace(served(), version=3),
        begun(served(), 3, ORDER, AT_MS),
    )
    for now in changed:
        with pytest.raises(ChangeConflict):
            change(now)


def test_what_is_dead_and_what_may_be_in_use() -> None:
    new = begun(expired(served(), AT_MS + 1000), 3, ORDER, AT_MS + 60_000)
    assert new.recompute is not None
    found = [0, 7, FIRST, new.recompute.generation, new.generations + 1]
    assert dead_generations(new, found) == [0, 7], "a newer one is another worker's"


@pytest.mark.parametrize(
    "wrong",
    [
        replace(OLD, generation=-1),
        replace(OLD, generation=3),
        replace(computing(), generation=FIRST),
        replace(served(), kept=KeptGeneration(FIRST, 1, 1000, 1)),
        replace(served(), kept=KeptGeneration(0, 0, 1000, 1)),
    ],
)
def test_records_that_make_no_sense_are_skipped(wrong: Deployment) -> None:
    assert not has_sound_generations(wrong)


# -- deploys --------------------------------------------------------------------------------------


def catalog(deployment: Deployment | None, status: Status | None = None) -> CatalogView:
    view = CatalogView()
    if deployment is not None:
        view.deployments["views"] = deployment
    if status is not None:
        view.statuses["views"] = status
    return view


def plan(recompute: RecomputeOrder | None = None) -> NewVersion:
    return NewVersion("views", "project", "spark-pipeline.yml", b"x", recompute=recompute)


def test_a_version_that_recomputes_does_not_run_at_once() -> None:
    change = Change("ann", AT_MS)
    new = change_plan.planned(catalog(OLD), plan(ORDER), 2, change)
    assert (new.version, new.revision) == (1, 6)
    assert new.recompute is not None
    assert new.recompute.version == 2


def test_no_version_is_deployed_during_a_recompute() -> None:
    for each in (plan(), plan(ORDER)):
        with pytest.raises(PipelineError, match="is being recomputed with version 2"):
            change_plan.planned(catalog(computing()), each, 3, Change("ann", AT_MS))


def test_what_is_not_deployed_cannot_be_recomputed() -> None:
    with pytest.raises(PipelineError, match="is not deployed"):
        change_plan.planned(catalog(None), plan(ORDER), 1, Change("ann", AT_MS))


def test_a_deployment_of_the_same_name_goes_on_with_the_served_tables() -> None:
    status = Status("views", "STOPPED", 7, 2, generation=FIRST, generations=FIRST)
    new = change_plan.planned(catalog(None, status), plan(), 3, Change("ann", AT_MS))
    assert (new.generation, new.generations, new.revision) == (FIRST, FIRST, 8)


def test_flows_are_not_reset_in_other_tables_than_was_meant() -> None:
    pending = replace(computing(), reset_flows=["copied"], reset_revision=5)
    new = change_plan.revised(pending, swapped(pending, FIRST, AT_MS), None, (), Change("", AT_MS))
    assert new.reset_flows == []


# -- folders --------------------------------------------------------------------------------------


def fill(storage: Path, generation: int) -> Path:
    folder = Path(generation_storage(str(storage), generation))
    (folder / "spark-warehouse" / "copied").mkdir(parents=True)
    return folder


def test_a_file_names_the_served_tables(tmp_path: Path) -> None:
    for generation, place in ((0, ""), (FIRST, f"/_generations/{FIRST}"), (0, "")):
        for _ in range(2):
            generation_folders.point(tmp_path, generation)
        assert (tmp_path / "current").read_text() == f"{tmp_path.resolve()}{place}\n"
    assert [each.name for each in tmp_path.iterdir()] == ["current"]


def test_only_what_spark_wrote_is_deleted_from_the_storage_itself(tmp_path: Path) -> None:
    fill(tmp_path, 0)
    kept = fill(tmp_path, FIRST)
    gone = fill(tmp_path, 7)
    (tmp_path / "notes.txt").write_text("mine")
    assert sorted(generation_folders.found_generations(tmp_path)) == [0, 7, FIRST]
    for _ in range(2):
        generation_folders.delete(tmp_path, [0, 7])
    assert generation_folders.found_generations(tmp_path) == [FIRST]
    assert kept.is_dir()
    assert not gone.exists()
    assert (tmp_path / "notes.txt").exists()


def checkpoint(storage: Path, number: int, offsets: list[object], committed: int) -> None:
    folder = storage / "_checkpoints" / "spark_catalog" / "default" / "copied" / "copied"
    folder = folder / str(number)
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text("{}")
    for batch, offset in enumerate(offsets):
        (folder / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offset)}\n")
    for batch in range(committed):
        (folder / "commits" / str(batch)).write_text("v1\n{}")


def test_offsets_are_those_of_the_last_batch_that_was_completed(tmp_path: Path) -> None:
    first = {"views": {"0": 10, "1": 5}}
    checkpoint(tmp_path, 0, [{"views": {"0": 99}}], 1)
    checkpoint(tmp_path, 1, [first, {"views": {"0": 20, "1": 9}}], 1)
    flow = "spark_catalog/default/copied/copied"
    assert read_offsets(tmp_path) == {flow: {("views", "0"): Read(10), ("views", "1"): Read(5)}}


def test_tables_that_have_read_less_are_found() -> None:
    old = {
        "copied": {("views", "0"): Read(10), ("views", "1"): Read(5)},
        "gone": {("views", "0"): Read(9)},
    }
    new = {"copied": {("views", "0"): Read(7), ("views", "1"): Read(50), ("users", "0"): Read(0)}}
    assert behind(old, new) == {"copied": 3}
    assert behind(old, {"copied": old["copied"]}) == {}


def test_a_topic_that_was_created_again_is_not_compared(tmp_path: Path) -> None:
    """The offsets of the old one say nothing about the new one."""
    position = Position({TopicPartition("views", 0): 900}, topics={"views": "old"})
    checkpoint(tmp_path, 0, [position_to_spark(position)], 1)
    old = read_offsets(tmp_path)
    (flow,) = old
    assert old == {flow: {("views", "0"): Read(900, "old")}}
    assert behind(old, {flow: {("views", "0"): Read(50, "new")}}) == {}
    assert behind(old, {flow: {("views", "0"): Read(50, "old")}}) == {flow: 850}
    assert behind(old, {flow: {("views", "0"): Read(50)}}) == {flow: 850}
