"""Unpacks a zip archive with a project that a person has uploaded.

The archive may come from anyone who can open the console. Only files and folders are accepted: no
links, and no paths that lead out of the folder. How much is written is counted while it is
unpacked, so that the sizes that the archive states need not be true.
"""

from __future__ import annotations

import errno
import lzma
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from penstock.spark.deployments.archive import FILES_MAX, UNPACKED_BYTES_MAX
from penstock.spark.deployments.ignore_rules import IgnoreRules
from penstock.spark.pipelines.errors import PipelineError

_PART_BYTES: Final = 1 << 20
_PATH_PARTS_MAX: Final = 50
"""Deeper folders could not be removed: the standard library visits them recursively."""
_PATH_BYTES_MAX: Final = 1_000
_NAME_BYTES_MAX: Final = 255
_SHOWN_CHARACTERS: Final = 100
_ENCRYPTED: Final = 0x1
_OF_A_MAC: Final = "__MACOSX/"
_BROKEN: Final = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError,
    ValueError,
)  # fmt: skip
"""What the standard library raises for archives that are damaged or of an unknown kind."""
_OF_THE_ARCHIVE: Final = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)


def unzip(archive: Path, target: Path, bytes_max: int = UNPACKED_BYTES_MAX) -> Path:
    """Unpacks an archive into a new folder, without what is never deployed. Returns the folder of
    the project: the only folder in the archive if it has nothing else, or else the new folder."""
    target.mkdir()
    try:
        with zipfile.ZipFile(archive) as opened:
            _extract(opened, target, bytes_max)
    except _BROKEN as error:
        raise PipelineError(f"the archive cannot be unpacked: {error}") from error
    except OSError as error:
        if error.errno not in _OF_THE_ARCHIVE:
            raise  # The archive is not to blame.
        raise PipelineError(f"the archive cannot be unpacked: {error.strerror}") from error
    found = list(target.iterdir())
    if not found:
        raise PipelineError("the archive has no files of a project")
    return found[0] if len(found) == 1 and found[0].is_dir() else target


def _extract(opened: zipfile.ZipFile, target: Path, bytes_max: int) -> None:
    size = 0
    folders: set[PurePosixPath] = set()
    for number, (path, member) in enumerate(_members(opened), 1):
        folders.update(path.parents[:-1])  # Without ".".
        if number + len(folders) > FILES_MAX:
            raise PipelineError(f"the archive has more than {FILES_MAX:,} files and folders")
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with opened.open(member) as content, file.open("xb") as written:
            while part := content.read(_PART_BYTES):
                size += len(part)
                if size > bytes_max:
                    raise PipelineError(
                        f"the archive is larger than {bytes_max >> 20} MiB when unpacked"
                    )
                written.write(part)
        if (member.external_attr >> 16) & stat.S_IXUSR:
            file.chmod(0o755)


def _members(opened: zipfile.ZipFile) -> Iterator[tuple[PurePosixPath, zipfile.ZipInfo]]:
    """Yields the files that are unpacked, with their paths."""
    rules = IgnoreRules([_OF_A_MAC])
    seen: set[PurePosixPath] = set()
    for member in opened.infolist():
        path = _checked_path(member.filename)
        if _is_left_out(path, rules, is_folder=member.is_dir()):
            continue
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind == stat.S_IFLNK:
            raise PipelineError(f"the archive has the link {path}: replace it by a copy")
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise PipelineError(f"the archive has {path}, which is neither a file nor a folder")
        if member.is_dir():
            continue
        if member.flag_bits & _ENCRYPTED:
            raise PipelineError(f"{path} in the archive has a password: pack it without one")
        if path in seen:
            raise PipelineError(f"the archive has {path} twice")
        seen.add(path)
        yield path, member


def _checked_path(name: str) -> PurePosixPath:
    shown = repr(name if len(name) <= _SHOWN_CHARACTERS else name[:_SHOWN_CHARACTERS] + "...")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise PipelineError(f"the archive has {shown}, a path outside its folder")
    if "\\" in name or not name.isprintable():
        raise PipelineError(
            f"the archive has {shown}: rename this file to printable characters without \\"
        )
    if len(path.parts) > _PATH_PARTS_MAX:
        raise PipelineError(
            f"the archive has {shown}, which is in more than {_PATH_PARTS_MAX - 1} folders: move "
            "it to a folder further up"
        )
    sizes = [len(part.encode()) for part in path.parts]
    if max(sizes) > _NAME_BYTES_MAX or sum(sizes) > _PATH_BYTES_MAX:
        raise PipelineError(f"the archive has {shown}, a path that is too long: shorten it")
    return path


def _is_left_out(path: PurePosixPath, rules: IgnoreRules, *, is_folder: bool) -> bool:
    folders = [*path.parents][-2::-1]  # Without ".", from the outermost.
    return any(rules.ignores(str(each), is_folder=True) for each in folders) or rules.ignores(
        str(path), is_folder=is_folder
    )
