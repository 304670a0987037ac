"""Describes an exception in one line: the exception that was raised first, and where."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

_PACKAGE: Final = "penstock"


def describe(error: BaseException) -> str:
    """Returns the type, the first line of the text and the place of an exception. Of a group, it
    describes the first exception inside, and counts the others."""
    first, *others = _leaves(error)
    said = str(first).partition("\n")[0]
    text = f"{type(first).__name__}: {said}" if said else type(first).__name__
    told = ", ".join(filter(None, (_location(first), f"and {len(others)} more" if others else "")))
    return f"{text} ({told})" if told else text


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _location(error: BaseException) -> str:
    """Returns the innermost call in this package, or elsewhere if there is none in it."""
    calls = [
        (PurePath(frame.f_code.co_filename).parts, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [call for call in calls if _PACKAGE in call[0]]
    if not calls:
        return ""
    parts, line, name = (own or calls)[-1]
    depth = parts[::-1].index(_PACKAGE) if own else 1
    return f"{'/'.join(parts[-depth:])}:{line} in {name}"
