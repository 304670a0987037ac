"""Tests which files of a project executors get."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("grpc", reason='pipelines need PySpark: pip install "penstock[spark]"')

from penstock.spark.pipelines.driver import Spark
from penstock.spark.pipelines.executor_modules import ExecutorModules, pack_modules


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in (
        "rules/__init__.py",
        "rules/grades.py",
        "transformations/views.py",
        "data.csv",
        ".venv/a.py",
        "own-environment/lib/b.py",
        "own-environment/pyvenv.cfg",
        "rules/__pycache__/c.py",
        "spark-warehouse/d.py",
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}")
    return root


def test_the_python_files_of_the_project_are_packed(project: Path, tmp_path: Path) -> None:
    packed = pack_modules(project, tmp_path)
    assert packed is not None
    with zipfile.ZipFile(packed) as archive:
        names = ["rules/__init__.py", "rules/grades.py", "transformations/views.py"]
        assert archive.namelist() == names
        assert archive.read("rules/grades.py") == b"# rules/grades.py"


def test_the_modules_are_compressed(project: Path, tmp_path: Path) -> None:
    (project / "rules/grades.py").write_text("# the same line\n" * 1_000)
    packed = pack_modules(project, tmp_path)
    assert packed is not None
    with zipfile.ZipFile(packed) as archive:
        entry = archive.getinfo("rules/grades.py")
    assert entry.compress_size < entry.file_size / 10


def test_files_that_cannot_be_read_are_left_out(
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A driver starts also beside the lock of an editor, and says which module it did not send."""
    (project / "rules/.#grades.py").symlink_to("someone@here.123")
    (project / "rules/gone.py").symlink_to("nowhere.py")
    (project / "rules/.hidden.py").write_text("# hidden")
    (project / "rules/folder.py").mkdir()
    os.mkfifo(project / "rules/pipe.py")
    (project / "rules/secret.py").write_text("# secret")
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "secret.py":  # The rights of a file do not stop root.
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    packed = pack_modules(project, tmp_path)
    assert packed is not None
    with zipfile.ZipFile(packed) as archive:
        names = ["rules/__init__.py", "rules/grades.py", "transformations/views.py"]
        assert archive.namelist() == names
    assert "secret.py is not sent to executors: Permission denied" in capsys.readouterr().err


def test_the_folder_is_deleted_if_spark_does_not_stop(project: Path) -> None:
    def fail() -> None:
        raise RuntimeError("the JVM is gone")

    sessions: Any = Sessions()
    spark = Spark.__new__(Spark)
    spark.session, spark.classic = None, None
    spark._modules = ExecutorModules("yarn")
    spark._modules.send(project, sessions.connect, None)
    folder = spark._modules._folder
    assert folder is not None and folder.is_dir()
    spark.streaming_queries = list  # type: ignore[method-assign]
    spark.classic = SimpleNamespace(stop=fail)
    with pytest.raises(RuntimeError):
        spark.close()
    assert not folder.exists()


def test_the_name_of_the_file_depends_on_its_content(project: Path, tmp_path: Path) -> None:
    """Spark refuses another file of the same name, and accepts the same file again."""
    first = pack_modules(project, tmp_path)
    assert first is not None
    content = first.read_bytes()
    assert pack_modules(project, tmp_path) == first
    assert first.read_bytes() == content
    (project / "rules/grades.py").write_text("# changed")
    assert pack_modules(project, tmp_path) not in (None, first)


class Sessions:
    """Both sessions of a driver. Keeps what is added to them."""

    def __init__(self) -> None:
        self.added: list[tuple[str, str]] = []
        self.connect = SimpleNamespace(addArtifacts=self._artifact)
        self.classic = SimpleNamespace(sparkContext=SimpleNamespace(addPyFile=self._py_file))

    def _artifact(self, path: str, *, pyfile: bool) -> None:
        assert pyfile and Path(path).is_file()
        self.added.append(("connect", Path(path).name))

    def _py_file(self, path: str) -> None:
        assert Path(path).is_file()
        self.added.append(("classic", Path(path).name))


@pytest.mark.parametrize(
    ("master", "kind", "expected"),
    [
        ("local[2]", "both", []),
        ("local[*]", "classic", []),
        ("spark://a:7077", "both", ["connect", "classic"]),
        ("yarn", "both", ["connect", "classic"]),
        ("sc://a:15002", "connect", ["connect"]),
        ("spark://a:7077", "classic", ["classic"]),
    ],
)
def test_modules_are_sent_to_executors_on_other_machines(
    project: Path, master: str, kind: str, expected: list[str]
) -> None:
    """Flows are defined in the Connect session; a script uses the classic one. A Connect server
    elsewhere has no classic one here."""
    sessions: Any = Sessions()
    modules = ExecutorModules(master)
    try:
        modules.send(
            project,
            None if kind == "classic" else sessions.connect,
            None if kind == "connect" else sessions.classic,
        )
    finally:
        modules.close()
    assert [kind for kind, _ in sessions.added] == expected
    assert all(name.startswith("penstock-modules-") for _, name in sessions.added)


def test_a_folder_without_modules_is_not_sent(tmp_path: Path) -> None:
    sessions: Any = Sessions()
    modules = ExecutorModules("yarn")
    modules.send(tmp_path, sessions.connect, sessions.classic)
    modules.close()
    assert sessions.added == []
