"""The sync clients have the names and the parameters of the async ones."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import penstock
from penstock import aio

PAIRS = [
    (aio.Producer, penstock.Producer),
    (aio.Consumer, penstock.Consumer),
    (aio.Admin, penstock.Admin),
]
SPECIAL = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
ONLY_ASYNC = {
    aio.Producer: {"add_room_listener"},  # How the sync one would learn of room, if it waited.
}
ONLY_ASYNC_PARAMETERS = {
    (aio.Producer, "__init__"): {"lock"},  # What makes it the core of a sync one.
}


def members(cls: type[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        is_special = name in SPECIAL or name in SPECIAL.values() or name == "__init__"
        if (is_special or not name.startswith("_")) and (
            inspect.isfunction(member) or isinstance(member, property)
        ):
            found[SPECIAL.get(name, name)] = member
    return found


@pytest.mark.parametrize(("async_class", "sync_class"), PAIRS, ids=lambda cls: cls.__module__)
def test_the_same_methods(async_class: type[Any], sync_class: type[Any]) -> None:
    """Every public method and property is on both sides."""
    expected = members(async_class).keys() - ONLY_ASYNC.get(async_class, set())
    assert expected == members(sync_class).keys()


@pytest.mark.parametrize(("async_class", "sync_class"), PAIRS, ids=lambda cls: cls.__module__)
def test_the_same_parameters(async_class: type[Any], sync_class: type[Any]) -> None:
    """Every method takes the same parameters, in the same order, of the same kind and default."""
    sync_members = members(sync_class)
    for name, member in members(async_class).items():
        if name in ONLY_ASYNC.get(async_class, set()) or isinstance(member, property):
            continue
        left_out = ONLY_ASYNC_PARAMETERS.get((async_class, name), set())
        theirs = [
            (each.name, each.kind, each.default)
            for each in inspect.signature(member).parameters.values()
            if each.name not in left_out
        ]
        ours = [
            (each.name, each.kind, each.default)
            for each in inspect.signature(sync_members[name]).parameters.values()
        ]
        assert ours == theirs, f"{sync_class.__name__}.{name}"


@pytest.mark.parametrize(("async_class", "sync_class"), PAIRS, ids=lambda cls: cls.__module__)
def test_nothing_sync_is_a_coroutine(async_class: type[Any], sync_class: type[Any]) -> None:
    """What the async class awaits, the sync class does."""
    for name, member in members(sync_class).items():
        assert not inspect.iscoroutinefunction(member), f"{sync_class.__name__}.{name}"
    assert any(inspect.iscoroutinefunction(member) for member in members(async_class).values())
