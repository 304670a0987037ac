"""What the client tells Python's garbage collector about the records that it returns."""

from __future__ import annotations

from typing import Any

try:
    import cython
except ImportError:
    from penstock.records import cython_shim as cython

if cython.compiled:
    from cython.cimports.penstock.records.collector import PyObject_GC_UnTrack

COMPILED: bool = cython.compiled


def untrack(objects: list[Any]) -> None:
    """Removes objects from the garbage collector's list. Does nothing if uncompiled.

    The objects refer only to bytes, text and numbers, so they cannot be part of a cycle. Thousands
    of them would make the collector scan all memory repeatedly.
    """
    if cython.compiled:
        for each in objects:
            PyObject_GC_UnTrack(each)
