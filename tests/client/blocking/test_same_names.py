"""Checks that the sync clients have the same methods and parameters as the async ones."""

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
    aio.Producer: {"add_room_listener"},  # A sync producer waits inside `send` instead.
}
ONLY_ASYNC_PARAMETERS = {
    (aio.Producer, "__init__"): {"lock"},  # Makes an async producer the core of a sync one.
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
def test_sync_and_async_have_the_same_methods(
    async_class: type[Any], sync_class: type[Any]
) -> None:
    """Properties are included."""
    expected = members(async_class).keys() - ONLY_ASYNC.get(async_class, set())
    assert expected == members(sync_class).keys()


@pytest.mark.parametrize(("async_class", "sync_class"), PAIRS, ids=lambda cls: cls.__module__)
def test_sync_and_async_methods_have_the_same_parameters(
    async_class: type[Any], sync_class: type[Any]
) -> None:
    """Same order, same kind and same defaults."""
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
def test_no_sync_method_is_a_coroutine(async_class: type[Any], sync_class: type[Any]) -> None:
    for name, member in members(sync_class).items():
        assert not inspect.iscoroutinefunction(member), f"{sync_class.__name__}.{name}"
    assert any(inspect.iscoroutinefunction(member) for member in members(async_class).values())
