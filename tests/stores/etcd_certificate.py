"""A certificate for a real etcd, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Certificate(NamedTuple):
    cert: str
    key: str


def certificate(folder: Path, name: str) -> Certificate:
    """Makes a certificate for loopback that signs itself, so it is its own authority."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, and the test needs a certificate")
    made = Certificate(str(folder / f"{name}.pem"), str(folder / f"{name}-key.pem"))
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:prime256v1", "-nodes", "-keyout", made.key, "-out", made.cert),
            *("-days", "2", "-subj", "/CN=etcd", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return made
