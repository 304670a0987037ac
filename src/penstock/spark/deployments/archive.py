"""Packs the files of a project into an archive, and unpacks it.

An archive is a compressed tar. The same files give the same bytes: names are sorted, and there are
no times and no owners. Of the permissions only "executable" is kept.

An archive that is unpacked may come from anyone with the right to write to the topic. Only files,
folders and links that stay inside are accepted. They are written into a new folder, which gets its
name when it is complete.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from penstock.spark.deployments.catalog_view import ARCHIVE_BYTES_MAX
from penstock.spark.deployments.ignore_rules import IGNORE_NAME, IgnoreRules, parse_ignore
from penstock.spark.partial_files import partial_path
from penstock.spark.pipelines.errors import PipelineError

FILES_MAX: Final = 10_000
UNPACKED_BYTES_MAX: Final = 512 << 20
REQUIREMENTS_NAME: Final = "requirements.txt"
_OF_THE_DISK: Final = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EMFILE,
        errno.ENFILE,
    }
)
_EXECUTABLE: Final = 0o755
_PLAIN: Final = 0o644
_HINT: Final = f"list what is not needed in {IGNORE_NAME}"


def pack(root: Path, ignored: Sequence[str] = ()) -> bytes:
    """Returns the archive of a folder, without what `ignore_rules`, its `.penstockignore` and
    `ignored` leave out."""
    try:
        files = list(project_files(root, ignored))
        return _compressed(root, files)
    except OSError as error:
        raise PipelineError(f"{error.filename} cannot be read: {error.strerror}") from error


def project_files(root: Path, ignored: Sequence[str] = ()) -> Iterator[str]:
    """Yields the paths of the files and links of a project, sorted, relative and with slashes."""
    listed = root / IGNORE_NAME
    try:
        given = parse_ignore(listed.read_text("utf-8")) if listed.is_file() else []
    except UnicodeDecodeError as error:
        raise PipelineError(f"{IGNORE_NAME} is not valid UTF-8 text: {error}") from None
    rules = IgnoreRules([*given, *ignored])
    for number, path in enumerate(_walk(root, "", rules), 1):
        if number > FILES_MAX:
            raise PipelineError(f"{root} has more than {FILES_MAX:,} files: {_HINT}")
        yield path


def requirements_hash(root: Path) -> str:
    """Returns the SHA-256 of the project's requirements.txt, or "" if it has none."""
    listed = root / REQUIREMENTS_NAME
    return hashlib.sha256(listed.read_bytes()).hexdigest() if listed.is_file() else ""


def _walk(folder: Path, prefix: str, rules: IgnoreRules) -> Iterator[str]:
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        path = prefix + entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if rules.ignores(path, is_folder=is_folder):
            continue
        if not path.isprintable():
            raise PipelineError(
                f"{path!r}: rename this file so that all characters are printable, or {_HINT}"
            )
        if is_folder:
            yield from _walk(folder / entry.name, path + "/", rules)
        elif entry.is_symlink() or entry.is_file():
            yield path
        else:
            raise PipelineError(f"{path} is neither a file nor a folder: delete it, or {_HINT}")


def _compressed(root: Path, files: Sequence[str]) -> bytes:
    buffer = io.BytesIO()
    size = 0
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in files:
            member = tarfile.TarInfo(path)
            source = root / path
            if source.is_symlink():
                member.type = tarfile.SYMTYPE
                member.linkname = _inner_link(path, source)
                tar.addfile(member)
                continue
            content = source.read_bytes()
            size += len(content)
            if size > UNPACKED_BYTES_MAX:
                raise _too_large(root, UNPACKED_BYTES_MAX)
            member.size = len(content)
            member.mode = _EXECUTABLE if source.stat().st_mode & 0o100 else _PLAIN
            tar.addfile(member, io.BytesIO(content))
    packed = gzip.compress(buffer.getvalue(), mtime=0)
    if len(packed) > ARCHIVE_BYTES_MAX:
        raise _too_large(root, ARCHIVE_BYTES_MAX)
    return packed


def _too_large(root: Path, limit: int) -> PipelineError:
    return PipelineError(f"the files of {root} are larger than {limit >> 20} MiB: {_HINT}")


def _inner_link(path: str, source: Path) -> str:
    target = os.readlink(source)
    if not _stays_inside(path, target):
        raise PipelineError(
            f"{path} is a link to {target}, which is not in the project: replace it with a copy, "
            f"or {_HINT}"
        )
    return target


def _stays_inside(path: str, target: str) -> bool:
    """Whether a link of this path leads to something in the same folder tree."""
    if not target or PurePosixPath(target).is_absolute():
        return False
    depth = len(PurePosixPath(path).parent.parts)
    for part in PurePosixPath(target).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return True


def unpack(archive: bytes, target: Path) -> None:
    """Unpacks an archive into a new folder. A folder that exists is complete, and is kept."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(target)
    partial.mkdir()
    try:
        _extract(archive, partial)
        try:
            partial.rename(target)
        except OSError:
            if not target.exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _extract(archive: bytes, folder: Path) -> None:
    links: set[PurePosixPath] = set()
    size = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            for number, member in enumerate(tar, 1):
                if number > FILES_MAX:
                    raise PipelineError(f"the archive has more than {FILES_MAX:,} files")
                size += max(0, member.size)
                if size > UNPACKED_BYTES_MAX:
                    raise PipelineError(
                        f"the archive is larger than {UNPACKED_BYTES_MAX >> 20} MiB when unpacked"
                    )
                path = _checked_path(member.name, links)
                if member.issym() and _stays_inside(member.name, member.linkname):
                    links.add(path)
                    (folder / path).parent.mkdir(parents=True, exist_ok=True)
                    (folder / path).symlink_to(member.linkname)
                elif member.isreg():
                    _write(tar, member, folder / path)
                elif not member.isdir():
                    raise PipelineError(
                        f"the archive has {member.name!r}, which is not a regular file"
                    )
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
            raise  # The archive is not to blame.
        raise PipelineError(f"the archive cannot be unpacked: {error}") from error


def _checked_path(name: str, links: set[PurePosixPath]) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise PipelineError(f"the archive has {name!r}, a path outside its folder")
    if links.intersection((path, *path.parents)):
        raise PipelineError(f"the archive has {name!r}, whose path goes through a link")
    return path


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None, "it is a regular file"
    with content:
        target.write_bytes(content.read())
    target.chmod(_EXECUTABLE if member.mode & 0o100 else _PLAIN)
