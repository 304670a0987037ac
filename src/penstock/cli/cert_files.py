"""The files of development certificates: an authority, and what it signs, in one directory."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Final

from penstock.cli.output import CommandFailed
from penstock.runtime import SystemRandom
from penstock.security.certificates import Issued, Subject, describe, new_authority

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def authority_of(folder: Path, organization: str, now_ms: int) -> tuple[Issued, bool]:
    """Returns the authority of the folder, and whether it was made now."""
    certificate_path, key_path = paths_of(folder, "ca")
    if certificate_path.exists() != key_path.exists():
        there, missing = sorted((certificate_path, key_path), key=lambda path: not path.exists())
        raise CommandFailed(
            f"{there} exists, but {missing} does not: restore it, or use another directory"
        )
    if certificate_path.exists():
        authority = Issued(certificate_path.read_text("ascii"), key_path.read_text("ascii"))
        if not describe(authority.certificate)[0].is_valid_at(now_ms):
            raise CommandFailed(f"{certificate_path} has expired: use another directory")
        return authority, False
    subject = Subject(f"{organization} development CA", organization=organization)
    authority = new_authority(subject, now_ms, SystemRandom().bytes)
    write_file(key_path, authority.key, secret=True)
    write_file(certificate_path, authority.certificate)
    return authority, True


def own_names() -> list[str]:
    """Returns the names that clients on this machine and in its network use for a broker here."""
    name = socket.gethostname()
    return ["localhost", *([name] if name not in ("", "localhost") else []), "127.0.0.1", "::1"]


def paths_of(folder: Path, name: str) -> tuple[Path, Path]:
    stem = name.replace(":", "-").replace("*", "_")
    if not _FILE_NAME.fullmatch(stem):
        raise CommandFailed(
            f"{name!r} cannot be the name of a file: use letters, digits, dots, - and _"
        )
    return folder / f"{stem}.pem", folder / f"{stem}-key.pem"


def write_file(path: Path, text: str, *, secret: bool = False) -> None:
    """Writes a file completely or not at all. Only its owner may read a secret one, at any time."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600 if secret else 0o644, exist_ok=False)
    partial.write_text(text, "ascii")
    os.replace(partial, path)
