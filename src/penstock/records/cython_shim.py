"""Replaces the `cython` module if Cython is not installed.

Only a build needs Cython. Its decorators in the kernels are hints for the compiler, and do nothing
in uncompiled code. Everything else that the kernels use from `cython` is in annotations, which are
never evaluated, or behind `cython.compiled`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")

compiled = False
int = longlong = Py_ssize_t = object  # noqa: A001 - Cython's name


def _as_it_is(decorated: _T) -> _T:
    return decorated


ccall = cclass = cfunc = final = inline = nogil = _as_it_is


def exceptval(*_value: Any, check: bool = False) -> Callable[[_T], _T]:
    del check
    return _as_it_is


def declare(_type: Any, value: _T) -> _T:
    """Returns the value of a C number."""
    return value
