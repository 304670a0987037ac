"""Plants bugs: registers functions by name that patch the product for a while."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from inspect import Parameter, signature
from types import FunctionType
from typing import Any

Plant = Callable[[ExitStack], None]


def bug(bugs: dict[str, Plant], name: str) -> Callable[[Plant], Plant]:
    """Registers a bug under a name. Its docstring describes it."""

    def note(plant: Plant) -> Plant:
        bugs[name] = plant
        return plant

    return note


def patch(patches: ExitStack, target: Any, name: str, value: Any) -> None:
    held = vars(target)[name]
    if isinstance(held, FunctionType) and isinstance(value, FunctionType):
        _require_fits(name, value, held)
    setattr(target, name, value)
    patches.callback(setattr, target, name, held)


def _require_fits(name: str, value: FunctionType, held: FunctionType) -> None:
    """Checks the signature of a patch. A bug that fails when it is called is found at once, and
    proves nothing."""
    taken, given = signature(value).parameters, signature(held).parameters
    kinds = {each.kind for each in taken.values()}
    named = {key for key, each in given.items() if each.kind is Parameter.KEYWORD_ONLY}
    in_order = len(given) - len(named)
    room = sum(each.kind is not Parameter.KEYWORD_ONLY for each in taken.values())
    if (Parameter.VAR_KEYWORD not in kinds and not named <= taken.keys()) or (
        Parameter.VAR_POSITIONAL not in kinds and room < in_order
    ):
        raise TypeError(f"the patch of {name} takes {[*taken]}, but callers give {[*given]}")
