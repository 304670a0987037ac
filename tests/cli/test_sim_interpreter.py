"""`penstock sim --python`: another interpreter gets the packages of this one."""

from __future__ import annotations

import sysconfig
from importlib.util import find_spec
from pathlib import Path

from penstock.cli.sim import package_paths


def test_another_interpreter_gets_the_packages_but_not_the_standard_library() -> None:
    """It has its own, and cannot load the compiled parts of another version."""
    paths = [Path(path) for path in package_paths()]
    spec = find_spec("rich")
    assert spec is not None and Path(str(spec.origin)).parents[1] in paths
    library = Path(sysconfig.get_path("stdlib"))
    assert not {library, library / "lib-dynload"} & {*paths}
