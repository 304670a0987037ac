"""Recognises failures for which the version of a pipeline is not to blame. Pure.

A full disk and a missing right stop every version. So such a failure does not count towards an
automatic rollback, which would only replace a version that is sound. It is tried again after a
pause, and the status says what to do.
"""

from __future__ import annotations

import re
from typing import Final

_ADVICE: Final = (
    (
        re.compile(r"No space left on device|Disk quota exceeded|\bENOSPC\b", re.IGNORECASE),
        "free space on the disk of the worker",
    ),
    (
        re.compile(
            r"\bthis user may not |\bnot allowed on this (topic|group|cluster|transactional id)|"
            r"(Topic|Group|Cluster|TransactionalId)AuthorizationException|Not authorized to access",
        ),
        "grant the right with penstock acl add, or give the pipeline a user who has it",
    ),
    (
        re.compile(r"Too many open files|Cannot allocate memory|\bthe driver cannot be run: "),
        "see the log of the worker, and free memory or processes on its machine",
    ),
)


def advice(error: str) -> str:
    """Returns what to do about a failure that is not the version's fault; empty if it may be."""
    return next((text for pattern, text in _ADVICE if pattern.search(error)), "")


def with_advice(error: str) -> str:
    """Adds what to do, unless the error says it."""
    text = advice(error)
    return error if not text or "penstock acl add" in error else f"{error}: {text}"
