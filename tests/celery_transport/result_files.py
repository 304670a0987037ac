"""A result backend with files that are replaced in one step.

Celery's own writes into the file of a result while others read it, and then they find half of it.
"""

from __future__ import annotations

import os
import threading

from celery.backends.filesystem import FilesystemBackend
from kombu.utils.encoding import ensure_bytes


class ResultFiles(FilesystemBackend):  # type: ignore[misc]  # Celery has no types
    """Results in the files of a folder. It can do chords."""

    def set(self, key: bytes, value: object) -> None:
        path = self._filename(key)
        unfinished = path + b".%d-%d" % (os.getpid(), threading.get_ident())
        with self.open(unfinished, "wb") as file:
            file.write(ensure_bytes(value))
        os.replace(unfinished, path)
