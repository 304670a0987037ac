"""No setting is accepted, shown and never read.

Every setting of the tables in `penstock.metadata` is read by some code, or says that it has no
effect, or only describes what a key of the broker's config file decides. The check looks through
the syntax trees of all modules: a broker setting is read where its name is the argument of
`BrokerConfigs.value` and its kin, a topic setting where its field of `TopicSettings` is used.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

from penstock.broker.config import BrokerConfig
from penstock.metadata.broker_configs import BROKER_CONFIGS, CORDONED
from penstock.metadata.config_types import Definition
from penstock.metadata.configs import TOPIC_CONFIGS, TopicSettings
from penstock.metadata.kafka_only_configs import KAFKA_ONLY_CONFIGS

SOURCE = Path(__file__).resolve().parents[2] / "src" / "penstock"
READERS = frozenset(("value", "int_value", "bool_value", "text_value"))
NOT_READING = ("sim", "testing", "cli", "client", "console", "spark")
"""Folders whose code is no broker's: what they do with a name is to set it."""

LATER: dict[str, str] = {}
"""Settings whose effect is on its way, and what it will be."""


@cache
def broker_trees() -> tuple[ast.Module, ...]:
    paths = [
        path
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in NOT_READING
    ]
    return tuple(ast.parse(path.read_text("utf-8")) for path in paths)


def names_read(tree: ast.Module) -> Iterator[str]:
    """The broker settings a module reads, by name.

    Of a name that is put together of pieces, the variable ones are texts of the same module.
    """
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "CORDONED":
            yield CORDONED
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr not in READERS or not node.args:
            continue
        name = node.args[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield name.value
        elif isinstance(name, ast.JoinedStr):
            yield from _put_together(name, texts)


def _put_together(name: ast.JoinedStr, texts: set[str]) -> Iterator[str]:
    pieces = [
        re.escape(piece.value)
        if isinstance(piece, ast.Constant) and isinstance(piece.value, str)
        else f"({'|'.join(map(re.escape, sorted(texts)))})"
        for piece in name.values
    ]
    pattern = re.compile("".join(pieces))
    yield from (each for each in BROKER_CONFIGS if pattern.fullmatch(each))


def fields_used(tree: ast.Module) -> Iterator[str]:
    """Attributes that a module reads of anything but a config of its own making."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr


def unread_broker_settings(trees: tuple[ast.Module, ...]) -> list[str]:
    read = {name for tree in trees for name in names_read(tree)}
    of_topics = {synonym.name for each in TOPIC_CONFIGS.values() for synonym in each.synonyms}
    return [
        name
        for name, definition in BROKER_CONFIGS.items()
        if name not in read | of_topics and not (definition.no_effect or definition.set_by)
    ]


def unread_topic_settings(trees: tuple[ast.Module, ...]) -> list[str]:
    used = {name for tree in trees for name in fields_used(tree)}
    return [
        name
        for name, definition in TOPIC_CONFIGS.items()
        if name.replace(".", "_") not in used and not definition.no_effect
    ]


def test_every_broker_setting_is_read_or_says_that_it_is_not() -> None:
    assert sorted(set(unread_broker_settings(broker_trees())) - LATER.keys()) == []


def test_every_topic_setting_is_read_or_says_that_it_is_not() -> None:
    assert unread_topic_settings(broker_trees()) == []


def test_a_setting_that_nobody_reads_is_found() -> None:
    """The check itself: without the code, everything is unread that does not say so."""
    nothing = (ast.parse("x = configs.int_value('num.partitions') + settings.retention_ms"),)
    unread = unread_broker_settings(nothing)
    assert "num.partitions" not in unread
    assert {"fetch.max.bytes", "delete.topic.enable", CORDONED} <= set(unread)
    assert "node.id" not in unread
    unread = unread_topic_settings(nothing)
    assert "retention.ms" not in unread
    assert {"segment.bytes", "min.insync.replicas"} <= set(unread)
    assert "preallocate" not in unread


def test_names_are_put_together_of_texts_in_the_same_module() -> None:
    tree = ast.parse('configs.int_value(f"{prefix}.num.partitions"); make("offsets.topic")')
    assert set(names_read(tree)) == {"offsets.topic.num.partitions"}


def test_what_has_no_effect_is_not_read() -> None:
    """A mark that is out of date would be as wrong as a missing one."""
    read = {name for tree in broker_trees() for name in names_read(tree)}
    marked = {name for name, definition in _broker_settings().items() if definition.no_effect}
    assert sorted(read & marked) == []


def test_the_documentation_says_what_has_no_effect() -> None:
    for definition in (*TOPIC_CONFIGS.values(), *_broker_settings().values()):
        says_so = "No effect in Penstock" in definition.documentation
        assert says_so == bool(definition.no_effect), definition.name


def _broker_settings() -> dict[str, Definition]:
    return {**BROKER_CONFIGS, **KAFKA_ONLY_CONFIGS}


def test_what_describes_the_broker_names_keys_that_exist() -> None:
    keys = {field.name for field in fields(BrokerConfig)}
    for definition in BROKER_CONFIGS.values():
        if definition.set_by:
            assert set(definition.set_by.split(" and ")) <= keys


def test_a_setting_is_either_known_here_or_only_to_kafka() -> None:
    assert BROKER_CONFIGS.keys() & KAFKA_ONLY_CONFIGS.keys() == set()
    assert {field.name.replace("_", ".") for field in fields(TopicSettings)} == set(TOPIC_CONFIGS)
