"""Stands in for the `cython` module where Cython is not installed.

Only a build needs Cython. The kernels use its decorators as notes to the compiler; uncompiled they
do nothing, and everything else they take from `cython` hides in annotations, which never run, or
behind `cython.compiled`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")

compiled = False


def _as_it_is(decorated: _T) -> _T:
    return decorated


ccall = cclass = cfunc = final = inline = nogil = _as_it_is


def exceptval(*_value: Any, check: bool = False) -> Callable[[_T], _T]:
    del check
    return _as_it_is
