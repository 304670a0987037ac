"""How bugs are planted: a function that patches something, under a name, for a while."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

Plant = Callable[[ExitStack], None]


def bug(bugs: dict[str, Plant], name: str) -> Callable[[Plant], Plant]:
    """Enters a bug into a list under a name; what it is, its docstring says."""

    def note(plant: Plant) -> Plant:
        bugs[name] = plant
        return plant

    return note


def patch(patches: ExitStack, target: Any, name: str, value: Any) -> None:
    held = vars(target)[name]
    setattr(target, name, value)
    patches.callback(setattr, target, name, held)
