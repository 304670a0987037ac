"""The kernels run where neither Cython nor a C compiler is installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import penstock.records

KERNELS = ("checking", "gc_tracking", "hashing", "ordinary_batch", "reading", "writing")


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_can_be_imported_without_cython(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cython", None)
    source = Path(penstock.records.__path__[0], f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"plain_{name}", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.cython.__name__ == "penstock.records.cython_shim"
    assert not module.cython.compiled
