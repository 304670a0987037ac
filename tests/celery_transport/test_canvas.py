"""The examples of Celery's guide to the canvas, on Penstock and, side by side, on RabbitMQ.

The same tasks run on both with the same results. The sections are those of the guide.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from celery import chain, chord, group
from celery.canvas import StampingVisitor

from celery_transport.both_brokers import Setup, get
from celery_transport.task_workers import LIMIT_S, lines, wait_until

pytestmark = pytest.mark.xdist_group("celery")


class Example(NamedTuple):
    make: Callable[[Setup], Any]
    expected: object


def add(setup: Setup, *args: int) -> Any:
    return setup.task("add", *args)


def adds(setup: Setup, count: int) -> list[Any]:
    """Returns tasks that return 0, 2, 4, and so on."""
    return [add(setup, number, number) for number in range(count)]


def chain_with_a_chord(setup: Setup) -> Any:
    both = group(add(setup, 10), setup.task("mul", 10))
    return chain(add(setup, 1, 1), both, setup.task("total"), add(setup, 1))


def nested(setup: Setup) -> Any:
    """Returns a group of a chord whose header has a chain and a chord, and of a task."""
    inner = chord([add(setup, 1, 1), add(setup, 2, 2)], setup.task("total"))
    outer = chord(
        [chain(add(setup, 1, 1), setup.task("mul", 5)), inner, add(setup, 3, 4)],
        chain(setup.task("total"), setup.task("mul", 2)),
    )
    return group(outer, setup.task("answer", "beside"))


def replaced_in_a_chain(setup: Setup) -> Any:
    return chain(setup.task("replace_with_task", 2, 3), setup.task("replace_with_chain"))


def replaced_in_a_chord(setup: Setup) -> Any:
    header = [setup.task("replace_with_task", 2, 3), setup.task("replace_with_chord", 4)]
    return chord(header, setup.task("total"))


EXAMPLES = {
    "a chain": Example(lambda it: chain(add(it, 2, 2), add(it, 4), it.task("mul", 10)), 80),
    "a step of a chain waits": Example(
        lambda it: chain(add(it, 1, 1), it.task("mul", 10).set(countdown=0.3)), 20
    ),
    "pipes": Example(lambda it: add(it, 4, 16) | it.task("mul", 2) | add(it, 4), 44),
    "a chain in a chain": Example(lambda it: add(it, 1, 1) | (add(it, 4) | it.task("mul", 8)), 48),
    "a group": Example(lambda it: group(adds(it, 10)), list(range(0, 20, 2))),
    "a group in a group": Example(
        lambda it: group(group(adds(it, 3)), it.task("mul", 3, 3)), [0, 2, 4, 9]
    ),
    "a group at the end of a chain": Example(
        lambda it: add(it, 4, 4) | group(add(it, 1), it.task("mul", 2)), [9, 16]
    ),
    "an immutable group": Example(
        lambda it: add(it, 4, 4) | group(it.app.tasks["add"].si(i, i) for i in range(3)), [0, 2, 4]
    ),
    "a group of one task in a chain": Example(
        lambda it: chain(add(it, 1, 1), group([it.task("mul", 10)]), add(it, 1)), 21
    ),
    "a chord": Example(lambda it: chord(adds(it, 5), it.task("total")), 20),
    "an immutable body": Example(
        lambda it: chord(adds(it, 2), it.app.tasks["answer"].si("done")), "done"
    ),
    "a chord without a header": Example(lambda it: chord([], it.task("total")), 0),
    "a body that is a group": Example(
        lambda it: chord(adds(it, 3), group(it.task("total"), it.task("answer"))), [6, [0, 2, 4]]
    ),
    "a group before a task": Example(lambda it: group(adds(it, 10)) | it.task("total"), 90),
    "a group in a chain": Example(chain_with_a_chord, 33),
    "a group after a group": Example(
        lambda it: group(adds(it, 3)) | group(it.task("total"), it.task("answer")), [6, [0, 2, 4]]
    ),
    "chains and chords in a chord": Example(nested, [46, "beside"]),
    "map": Example(lambda it: it.app.tasks["total"].map([[1, 2], list(range(100))]), [3, 4950]),
    "starmap": Example(
        lambda it: it.app.tasks["add"].starmap([(n, n) for n in range(4)]), [0, 2, 4, 6]
    ),
    "maps in a group": Example(
        lambda it: group(
            it.app.tasks["total"].map([[1, 2]]), it.app.tasks["add"].starmap([(3, 4)])
        ),
        [[3], [7]],
    ),
    "chunks": Example(
        lambda it: it.app.tasks["add"].chunks([(n, n) for n in range(5)], 2).group(),
        [[0, 2], [4, 6], [8]],
    ),
    "a task replaces itself with a task": Example(lambda it: it.task("replace_with_task", 2, 3), 5),
    "a task replaces itself with a chain": Example(lambda it: it.task("replace_with_chain", 2), 30),
    "a task replaces itself with a group": Example(
        lambda it: it.task("replace_with_group", 3), [0, 2, 4]
    ),
    "a task replaces itself with a chord": Example(lambda it: it.task("replace_with_chord", 4), 14),
    "a task of a chain replaces itself": Example(replaced_in_a_chain, 60),
    "a task of a chord replaces itself": Example(replaced_in_a_chord, 19),
}


@pytest.fixture(scope="module")
def sent(setup: Setup) -> dict[str, Any]:
    """The results of all examples, which run at the same time: a chord takes a second and more."""
    return {name: example.make(setup).apply_async() for name, example in EXAMPLES.items()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_canvas_has_its_result(sent: dict[str, Any], name: str) -> None:
    assert get(sent[name]) == EXAMPLES[name].expected


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


def test_pipes_make_chains_and_join_them(setup: Setup) -> None:
    partial = setup.task("add", 4) | setup.task("mul", 8)
    assert get(partial(16)) == 160
    assert get((setup.task("add", 4, 16) | setup.task("mul", 2) | partial)()) == 352


def test_a_chain_knows_its_intermediate_results(setup: Setup) -> None:
    result = chain(setup.task("add", 4, 4), setup.task("mul", 8), setup.task("mul", 10))()
    assert get(result) == 640
    assert [get(result.parent), get(result.parent.parent)] == [64, 8]
    assert len(result.parent.parent.graph) == 3


# -- groups ----------------------------------------------------------------------------------------


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


def test_a_group_knows_the_step_before_it(setup: Setup) -> None:
    steps = setup.task("add", 4, 4) | group(setup.app.tasks["add"].si(i, i) for i in range(3))
    result = steps()
    assert get(result) == [0, 2, 4]
    assert get(result.parent) == 8


# -- chords ----------------------------------------------------------------------------------------


def test_a_chord_is_called_with_its_body(setup: Setup) -> None:
    header = chord(setup.task("add", number, number) for number in range(5))
    assert get(header(setup.task("total"))) == 20


# -- map, starmap and chunks -----------------------------------------------------------------------


def test_chunks_and_maps_are_called(setup: Setup) -> None:
    pairs = zip(range(4), range(4), strict=True)
    assert get(setup.app.tasks["add"].chunks(pairs, 3)()) == [[0, 2, 4], [6]]
    assert get(setup.app.tasks["total"].starmap([([1, 2],)]).apply_async(countdown=0.1)) == [3]


def test_chunks_are_skewed(setup: Setup) -> None:
    """Each of them has a later countdown than the one before it."""
    chunks = setup.app.tasks["add"].chunks([(1, 1), (2, 2), (3, 3)], 1).group()
    skewed = chunks.skew(start=0.1, stop=0.4, step=0.1)
    assert [task.options["countdown"] for task in skewed.tasks] == pytest.approx([0.1, 0.2, 0.3])
    assert get(skewed.apply_async()) == [[2], [4], [6]]


# -- stamps ----------------------------------------------------------------------------------------


class CustomerStamp(StampingVisitor):  # type: ignore[misc]  # Celery has no types
    """Stamps tasks with a customer, and says which of them are callbacks."""

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
