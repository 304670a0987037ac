"""With PENSTOCK_PURE=1 the kernels run as plain Python, although the extension lies beside them.

`make test` runs on two processes. What belongs together stays on one of them: a file, the tests
that share a Spark session, those that share a browser. The long ones come first, so that both
processes end at about the same time.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import PurePath
from types import ModuleType

import pytest

_KERNELS = tuple(f"penstock.records.{name}" for name in ("reading", "writing", "hashing"))
_TOGETHER = ("spark", "console/browser", "chaos", "sim", "compat")
"""Folders, the longest first; of the last three each file goes its own way."""
_SHARING = _TOGETHER[:2]


class _PureKernels(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _KERNELS or path is None:
            return None
        source = os.path.join(path[0], name.rpartition(".")[2] + ".py")
        return importlib.util.spec_from_file_location(
            name, source, loader=SourceFileLoader(name, source)
        )


# A console beside every broker that a test brings up would be work for nobody.
os.environ.setdefault("PENSTOCK_CONSOLE", "0")

if os.environ.get("PENSTOCK_PURE") == "1":
    assert not sys.modules.keys() & set(_KERNELS), (
        "the kernels were imported before they could be replaced"
    )
    sys.meta_path.insert(0, _PureKernels())


def _folder(item: pytest.Item) -> str:
    path = item.path.relative_to(PurePath(__file__).parent).as_posix()
    return next((each for each in _TOGETHER if path.startswith(f"{each}/")), "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {folder: place for place, folder in enumerate((*_TOGETHER, ""))}
    items.sort(key=lambda item: order[_folder(item)])
    for item in items:
        folder = _folder(item)
        group = folder if folder in _SHARING else item.path.as_posix()
        item.add_marker(pytest.mark.xdist_group(group))
