"""The pipes between a driver and the process that has started it: only the driver has them.

Programs that the code of a pipeline starts inherit standard input, and every descriptor that is not
protected. Such a program would read commands that are meant for the driver, or keep the pipe of
events open after the driver has ended.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TextIO


def take_input() -> TextIO:
    """Returns the standard input of this process. From now on, descriptor 0 and `sys.stdin` are
    empty, here and in programs that this process starts. Call it before anything is read."""
    own = os.dup(0)  # A duplicate is not inherited.
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return os.fdopen(own, encoding="utf-8")


def keep_private(descriptor: int) -> None:
    """Programs that this process starts do not inherit a descriptor."""
    os.set_inheritable(descriptor, False)
