"""The examples of Celery's guide to the canvas, on Penstock and, side by side, on RabbitMQ.

The same tasks run on both with the same results. The sections are those of the guide.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from celery.canvas import StampingVisitor

from celery_transport.both_brokers import Setup, get
from celery_transport.task_workers import LIMIT_S, lines, wait_until

pytestmark = pytest.mark.xdist_group("celery")


# -- signatures ------------------------------------------------------------------------------------


def test_a_signature_is_called_in_each_way(setup: Setup) -> None:
    add = setup.app.tasks["add"]
    results = [
        add.delay(2, 2),
        add.s(2, 2).delay(),
        add.apply_async((2,), {"y": 2}),
        add.signature((2, 2), countdown=0.1).apply_async(),
        add.s(2, 2).set(countdown=0.1).apply_async(),
        setup.app.send_task("add", (2, 2)),
    ]
    assert [get(result) for result in results] == [4] * 6


def test_a_partial_gets_the_arguments_that_are_missing(setup: Setup) -> None:
    partial = setup.task("mul", 2)
    power = setup.app.tasks["mul"].s(x=3)
    results = [
        partial.delay(4),
        partial.apply_async((5,)),
        power.delay(y=3),
        power.apply_async(kwargs={"y": 5, "x": 4}),
        partial.clone(args=(10,)).delay(),
    ]
    assert [get(result) for result in results] == [8, 10, 9, 20, 20]


def test_options_that_are_given_last_win(setup: Setup) -> None:
    late = setup.task("describe", priority=1)
    assert get(late.apply_async(priority=3))["priority"] == 3


def test_an_immutable_signature_takes_no_result(setup: Setup) -> None:
    steps = chain(
        setup.task("add", 2, 2),
        setup.task("add", 4, 4, immutable=True),
        setup.app.tasks["mul"].si(8, 8),
    )
    result = steps()
    assert get(result) == 64
    assert get(result.parent) == 8
    assert get(result.parent.parent) == 4


# -- callbacks -------------------------------------------------------------------------------------


def test_callbacks_get_the_result(setup: Setup) -> None:
    """One of them has a callback of its own."""
    linked = setup.task("mul", 16)
    linked.link(setup.task("add", 1))
    result = setup.task("add", 2, 2).apply_async(link=[linked, setup.task("add", 8)])
    assert get(result) == 4
    assert [get(child) for child in result.children] == [[64, 12]]
    graph = result.collect(timeout=LIMIT_S, interval=0.05)
    assert [value for _, value in graph] == [4, [64, 12], 64, 12, 65]


def test_an_immutable_callback_takes_no_result(setup: Setup, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    setup.task("add", 2, 2).apply_async(
        link=setup.task("note", str(notes), "called", immutable=True)
    )
    wait_until(lambda: lines(notes) == ["called"], "the callback was called")


# -- chains ----------------------------------------------------------------------------------------


def test_a_chain_passes_each_result_on(setup: Setup) -> None:
    steps = chain(setup.task("add", 2, 2), setup.task("add", 4), setup.task("mul", 10))
    assert get(steps.apply_async()) == 80


def test_pipes_make_chains_and_join_them(setup: Setup) -> None:
    partial = setup.task("add", 4) | setup.task("mul", 8)
    assert get(partial(16)) == 160
    assert get((setup.task("add", 4, 16) | setup.task("mul", 2) | partial)()) == 352


def test_a_chain_knows_its_intermediate_results(setup: Setup) -> None:
    result = chain(setup.task("add", 4, 4), setup.task("mul", 8), setup.task("mul", 10))()
    assert get(result) == 640
    assert [get(result.parent), get(result.parent.parent)] == [64, 8]
    assert len(result.parent.parent.graph) == 3


def test_a_step_of_a_chain_may_wait(setup: Setup) -> None:
    steps = chain(setup.task("add", 1, 1), setup.task("mul", 10).set(countdown=0.3))
    assert get(steps.apply_async()) == 20


# -- groups ----------------------------------------------------------------------------------------


def test_a_group_runs_its_tasks_side_by_side(setup: Setup) -> None:
    squares = group(setup.task("mul", number, number) for number in range(10))
    assert get(squares.apply_async()) == [number * number for number in range(10)]


def test_a_group_passes_arguments_to_its_tasks(setup: Setup) -> None:
    assert get(group(setup.task("add", 1), setup.task("mul", 3))(5)) == [6, 15]


def test_the_result_of_a_group_is_stored_and_counts(setup: Setup) -> None:
    result = group(setup.task("add", number, number) for number in range(4)).apply_async()
    assert result.join(timeout=LIMIT_S, interval=0.05) == [0, 2, 4, 6]
    assert (result.successful(), result.failed(), result.waiting()) == (True, False, False)
    assert result.completed_count() == 4
    result.save()
    assert get(setup.app.GroupResult.restore(result.id)) == [0, 2, 4, 6]


def test_a_group_with_a_failure_fails(setup: Setup) -> None:
    result = group(setup.task("add", 1, 1), setup.task("fail", "no milk")).apply_async()
    with pytest.raises(ValueError, match="no milk"):
        get(result)
    wait_until(result.ready, "both tasks have ended")
    assert (result.successful(), result.failed()) == (False, True)
    found = result.join(propagate=False)
    assert (found[0], str(found[1])) == (2, "no milk")


def test_a_group_in_a_group_becomes_a_part_of_it(setup: Setup) -> None:
    inner = group(setup.task("add", 1, 1), setup.task("add", 2, 2))
    assert get(group(inner, setup.task("mul", 3, 3)).apply_async()) == [2, 4, 9]


def test_a_group_ends_a_chain(setup: Setup) -> None:
    """With and without the result of the step before it."""
    told = chain(setup.task("add", 4, 4), group(setup.task("add", 1), setup.task("mul", 2)))
    assert get(told.apply_async()) == [9, 16]
    untold = setup.task("add", 4, 4) | group(setup.app.tasks["add"].si(i, i) for i in range(3))
    result = untold()
    assert get(result) == [0, 2, 4]
    assert get(result.parent) == 8


def test_a_group_of_one_task_in_a_chain_is_that_task(setup: Setup) -> None:
    steps = chain(setup.task("add", 1, 1), group([setup.task("mul", 10)]), setup.task("add", 1))
    assert get(steps.apply_async()) == 21


# -- chords ----------------------------------------------------------------------------------------


def test_a_chord_gets_the_results_of_its_group(setup: Setup) -> None:
    numbers = chord((setup.task("add", number, number) for number in range(5)), setup.task("total"))
    assert get(numbers.apply_async()) == 20


def test_a_chord_is_called_with_its_body(setup: Setup) -> None:
    header = chord(setup.task("add", number, number) for number in range(5))
    assert get(header(setup.task("total"))) == 20


def test_an_immutable_body_takes_no_results(setup: Setup) -> None:
    header = [setup.task("add", 1, 1), setup.task("add", 2, 2)]
    assert get(chord(header)(setup.app.tasks["answer"].si("done"))) == "done"


def test_a_chord_without_a_header_runs_its_body(setup: Setup) -> None:
    assert get(chord([], setup.task("total")).apply_async()) == 0


def test_a_group_before_a_task_becomes_a_chord(setup: Setup) -> None:
    steps = group(setup.task("add", i, i) for i in range(10)) | setup.task("total")
    assert get(steps()) == 90


def test_a_group_in_a_chain_becomes_a_chord(setup: Setup) -> None:
    steps = chain(
        setup.task("add", 1, 1),
        group(setup.task("add", 10), setup.task("mul", 10)),
        setup.task("total"),
        setup.task("add", 1),
    )
    assert get(steps.apply_async()) == 33


def test_two_groups_in_a_chain_become_a_chord(setup: Setup) -> None:
    steps = chain(
        group(setup.task("add", 1, 1), setup.task("add", 2, 2)),
        group(setup.task("total"), setup.task("answer")),
    )
    assert get(steps.apply_async()) == [6, [2, 4]]


def test_chains_and_chords_nest(setup: Setup) -> None:
    """Chains and a chord are in a chord, which is in a group."""
    inner = chord([setup.task("add", 1, 1), setup.task("add", 2, 2)], setup.task("total"))
    outer = chord(
        [chain(setup.task("add", 1, 1), setup.task("mul", 5)), inner, setup.task("add", 3, 4)],
        chain(setup.task("total"), setup.task("mul", 2)),
    )
    assert get(group(outer, setup.task("answer", "beside")).apply_async()) == [46, "beside"]


def test_a_body_may_be_a_group(setup: Setup) -> None:
    header = [setup.task("add", 1, 1), setup.task("add", 2, 2)]
    assert get(chord(header, group(setup.task("total"), setup.task("answer"))).apply_async()) == [
        6,
        [2, 4],
    ]


# -- map, starmap and chunks -----------------------------------------------------------------------


def test_map_and_starmap_call_a_task_in_one_task(setup: Setup) -> None:
    total, add = setup.app.tasks["total"], setup.app.tasks["add"]
    assert get(total.map([list(range(10)), list(range(100))]).delay()) == [45, 4950]
    pairs = add.starmap(zip(range(10), range(10), strict=True))
    assert get(pairs.apply_async(countdown=0.1)) == [2 * number for number in range(10)]
    assert get(group(total.map([[1, 2]]), add.starmap([(3, 4)])).apply_async()) == [[3], [7]]


def test_chunks_split_a_list(setup: Setup) -> None:
    chunks = setup.app.tasks["add"].chunks(zip(range(10), range(10), strict=True), 4)
    expected = [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]
    assert get(chunks.group().apply_async()) == expected
    assert get(setup.app.tasks["add"].chunks([(1, 1), (2, 2)], 1)()) == [[2], [4]]


def test_chunks_are_skewed(setup: Setup) -> None:
    """Each of them has a later countdown than the one before it."""
    chunks = setup.app.tasks["add"].chunks([(1, 1), (2, 2), (3, 3)], 1).group()
    skewed = chunks.skew(start=0.1, stop=0.4, step=0.1)
    assert [task.options["countdown"] for task in skewed.tasks] == pytest.approx([0.1, 0.2, 0.3])
    assert get(skewed.apply_async()) == [[2], [4], [6]]


# -- stamps ----------------------------------------------------------------------------------------


class CustomerStamp(StampingVisitor):  # type: ignore[misc]  # Celery has no types
    """Stamps tasks with a customer, the bodies of chords and callbacks with more."""

    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        return {"customer": "Ada"}

    def on_callback(self, callback: Any, **header: Any) -> dict[str, Any]:
        return {"callback": True}


def test_a_stamp_comes_with_the_task(setup: Setup) -> None:
    stamped = setup.task("describe")
    stamped.stamp(order="17")
    assert get(stamped.apply_async())["stamps"] == {"order": "17"}


def test_a_visitor_stamps_all_tasks_of_a_canvas(setup: Setup, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    task = setup.task("describe")
    task.link(setup.task("note_stamps", str(notes)))
    canvas = group(chain(setup.task("add", 1, 1), setup.task("describe")), task)
    canvas.stamp(CustomerStamp())
    assert [each["stamps"] for each in get(canvas.apply_async())] == [{"customer": "Ada"}] * 2
    wait_until(lambda: lines(notes) == ["callback,customer"], "the callback has noted its stamps")


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"serializer": "json"}])
def test_a_large_message_arrives(setup: Setup, options: dict[str, str]) -> None:
    text = "grüße " * 20_000
    assert get(setup.task("answer", text).apply_async(**options)) == text


def test_a_message_has_its_headers(setup: Setup) -> None:
    found = get(setup.task("describe").apply_async(headers={"tenant": "blue"}, priority=2))
    assert (found["tenant"], found["priority"]) == ("blue", 2)
    assert found["routing_key"] == "canvas"
