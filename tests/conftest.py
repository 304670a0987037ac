"""With PENSTOCK_PURE=1 the kernels run as plain Python, although the extension lies beside them."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType

_KERNELS = tuple(f"penstock.records.{name}" for name in ("reading", "writing", "hashing"))


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
