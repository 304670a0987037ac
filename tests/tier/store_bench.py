"""Real ports, and the options of an S3 server on this machine."""

from __future__ import annotations

from typing import cast

from penstock.ports import Env
from penstock.runtime import SystemClock, SystemRandom, Threads


class Ports:
    """Those that stores need."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.random = SystemRandom()
        self.executor = Threads(2)


def new_env() -> Env:
    return cast("Env", Ports())


def s3_options(port: int) -> dict[str, str]:
    return {
        "endpoint": f"http://127.0.0.1:{port}",
        "allow_http": "true",
        "access_key_id": "any",
        "secret_access_key": "any",
        "region": "us-east-1",
    }
