"""Which queues a message reaches."""

from __future__ import annotations

import pytest

from penstock.celery.binding_table import Binding, BindingTable, fits, log_of, value_of


@pytest.mark.parametrize(
    ("pattern", "routing_key", "expected"),
    [
        ("video.encode", "video.encode", True),
        ("video.*", "video.encode", True),
        ("video.*", "video", False),
        ("video.*", "video.encode.hd", False),
        ("video.#", "video", True),
        ("video.#", "video.encode.hd", True),
        ("#", "", True),
        ("#", "any.thing", True),
        ("#.hd", "video.encode.hd", True),
        ("#.encode.#", "video.encode.hd", True),
        ("#.*", "", False),
        ("*.*", "a.b", True),
        ("a.b", "a*b", False),
        ("", "", False),
    ],
)
def test_patterns_of_topic_exchanges(pattern: str, routing_key: str, expected: bool) -> None:
    """`*` is one word, `#` any number of words. An empty pattern is one empty word."""
    assert fits("topic", pattern, routing_key) is expected


def test_direct_exchanges_compare_and_fanout_exchanges_do_not() -> None:
    assert fits("direct", "a.*", "a.*")
    assert not fits("direct", "a.*", "a.b")
    assert fits("fanout", "x", "y")


def table(*bindings: tuple[Binding, str]) -> BindingTable:
    made = BindingTable()
    for binding, kind in bindings:
        made.apply(binding.key(), value_of(kind))
    return made


def test_each_queue_gets_a_message_once() -> None:
    made = table(
        (Binding("media", "video.*", "all"), "topic"),
        (Binding("media", "#", "all"), "topic"),
        (Binding("media", "image.*", "images"), "topic"),
        (Binding("other", "#", "others"), "topic"),
    )
    assert made.queues("media", "video.encode") == ["all"]
    assert made.queues("media", "image.crop") == ["all", "images"]
    assert made.kind("media") == "topic"
    assert made.kind("unknown") is None


def test_the_log_of_an_exchange_is_no_queue() -> None:
    made = table((log_of("events"), "fanout"))
    assert made.uses_log("events")
    assert made.queues("events", "any") == []
    assert not made.uses_log("others")


def test_a_tombstone_deletes_a_binding() -> None:
    binding = Binding("media", "video", "videos")
    made = table((binding, "direct"))
    assert made.of_queue("videos") == [binding]
    made.apply(binding.key(), None)
    assert made.queues("media", "video") == []
    assert made.of_exchange("media") == []


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b"{}"), (b"[1]", b'{"type": "direct"}'), (b'["a", "b", "c"]', b"no json")],
)
def test_records_that_are_no_bindings_are_ignored(key: bytes | None, value: bytes) -> None:
    made = BindingTable()
    made.apply(key, value)
    made.apply(b'["a", "b", "c"]', b'{"type": "headers"}')
    assert list(made) == []
