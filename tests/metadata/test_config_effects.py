"""Every setting is read by some code, or its documentation says that it has no effect.

A setting of the tables in `penstock.metadata` may also only describe what a key of the broker's
config file decides. The check walks the syntax trees of all modules: a broker setting is read
where its name is the argument of `BrokerConfigs.value` and similar methods, a topic setting where
its field of `TopicSettings` is used.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

from penstock.broker.config import BrokerConfig
from penstock.metadata import group_configs, share_group_configs
from penstock.metadata.broker_configs import BROKER_CONFIGS, CORDONED
from penstock.metadata.config_types import Definition
from penstock.metadata.configs import TOPIC_CONFIGS, TopicSettings
from penstock.metadata.group_configs import GROUP_CONFIGS
from penstock.metadata.kafka_only_configs import KAFKA_ONLY_CONFIGS

SOURCE = Path(__file__).resolve().parents[2] / "src" / "penstock"
READERS = frozenset(("value", "int_value", "bool_value", "text_value"))
NOT_READING = ("sim", "testing", "cli", "client", "console", "spark")
"""Folders whose code does not run in a broker: they only set these names."""

LATER: dict[str, str] = {}
"""Settings whose effect is not implemented yet, and what it will be."""


@cache
def broker_trees() -> tuple[ast.Module, ...]:
    paths = [
        path
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in NOT_READING
    ]
    return tuple(ast.parse(path.read_text("utf-8")) for path in paths)


def names_read(tree: ast.Module) -> Iterator[str]:
    """Yields the names of the broker settings that a module reads.

    If a name is an f-string, its variable parts are taken from the string constants of the module.
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
    """Yields the names of all attributes that a module reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr


@cache
def names_of_listeners() -> frozenset[str]:
    """Returns the words in the constants of the modules that read the settings of listeners.

    These modules read a mapping of all settings, some of them with a prefix.
    """
    found: set[str] = set()
    folders = (SOURCE / "security", SOURCE / "broker" / "listeners")
    for path in (each for folder in folders for each in folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.update(node.value.split())
            elif isinstance(node, ast.JoinedStr):
                texts = [each.value for each in node.values if isinstance(each, ast.Constant)]
                found.update(str(each) for each in texts)
    return frozenset(found)


def unread_broker_settings(trees: tuple[ast.Module, ...]) -> list[str]:
    read = {name for tree in trees for name in names_read(tree)}
    read |= names_of_listeners() & {"listeners", "advertised.listeners"}
    of_topics = {synonym.name for each in TOPIC_CONFIGS.values() for synonym in each.synonyms}
    of_groups = {f"group.{name}" for name in GROUP_CONFIGS}
    return [
        name
        for name, definition in BROKER_CONFIGS.items()
        if name not in read | of_topics | of_groups
        and not (definition.no_effect or definition.set_by)
    ]


def unread_topic_settings(trees: tuple[ast.Module, ...]) -> list[str]:
    used = {name for tree in trees for name in fields_used(tree)}
    return [
        name
        for name, definition in TOPIC_CONFIGS.items()
        if name.replace(".", "_") not in used and not definition.no_effect
    ]


def test_every_broker_setting_is_read_or_documented_as_without_effect() -> None:
    assert sorted(set(unread_broker_settings(broker_trees())) - LATER.keys()) == []


def test_every_config_of_share_groups_is_used_by_the_broker() -> None:
    """A constant of its name is used in `broker.coordinators.share_settings`."""
    path = SOURCE / "broker" / "coordinators" / "share_settings.py"
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    used = {each.id for each in nodes if isinstance(each, ast.Name)}
    tables = {**vars(group_configs), **vars(share_group_configs)}
    read = {str(tables[name]) for name in used if name.startswith("SHARE_") and name in tables}
    assert sorted(name for name in GROUP_CONFIGS if "share." in name and name not in read) == []


def test_every_setting_of_listeners_is_read_by_them() -> None:
    used = [each.name for each in KAFKA_ONLY_CONFIGS.values() if not each.no_effect]
    assert len(used) > 20
    assert [name for name in used if name not in names_of_listeners()] == []


def test_every_topic_setting_is_read_or_documented_as_without_effect() -> None:
    assert unread_topic_settings(broker_trees()) == []


def test_the_check_finds_settings_that_are_not_read() -> None:
    """Without the source code, every setting is unread except those documented as without
    effect."""
    nothing = (ast.parse("x = configs.int_value('num.partitions') + settings.retention_ms"),)
    unread = unread_broker_settings(nothing)
    assert "num.partitions" not in unread
    assert {"fetch.max.bytes", "delete.topic.enable", CORDONED} <= set(unread)
    assert "node.id" not in unread
    unread = unread_topic_settings(nothing)
    assert "retention.ms" not in unread
    assert {"segment.bytes", "min.insync.replicas"} <= set(unread)
    assert "preallocate" not in unread


def test_names_in_f_strings_are_resolved_within_the_module() -> None:
    tree = ast.parse('configs.int_value(f"{prefix}.num.partitions"); make("offsets.topic")')
    assert set(names_read(tree)) == {"offsets.topic.num.partitions"}


def test_settings_marked_as_without_effect_are_not_read() -> None:
    """An outdated mark would be as wrong as a missing one."""
    read = {name for tree in broker_trees() for name in names_read(tree)}
    marked = {name for name, definition in _broker_settings().items() if definition.no_effect}
    assert sorted(read & marked) == []


def test_the_documentation_names_settings_without_effect() -> None:
    for definition in (*TOPIC_CONFIGS.values(), *_broker_settings().values()):
        says_so = "No effect in Penstock" in definition.documentation
        assert says_so == bool(definition.no_effect), definition.name


def _broker_settings() -> dict[str, Definition]:
    return {**BROKER_CONFIGS, **KAFKA_ONLY_CONFIGS}


def test_descriptive_settings_name_existing_config_file_keys() -> None:
    keys = {field.name for field in fields(BrokerConfig)}
    for definition in BROKER_CONFIGS.values():
        if definition.set_by:
            assert set(definition.set_by.split(" and ")) <= keys


def test_a_setting_is_either_penstocks_or_only_kafkas() -> None:
    assert BROKER_CONFIGS.keys() & KAFKA_ONLY_CONFIGS.keys() == set()
    assert {field.name.replace("_", ".") for field in fields(TopicSettings)} == set(TOPIC_CONFIGS)
