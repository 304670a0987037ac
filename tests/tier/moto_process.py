"""moto's S3 server, an independent implementation of S3, in a process of its own.

It is not a dependency of the tests: moto needs botocore, and botocore needs an older version of
python-dateutil than the other tools. `make tools` installs it in an environment of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from http.client import HTTPConnection
from pathlib import Path

import pytest

from penstock.testing.slowness import patient

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ROOT / ".tools" / "moto" / "bin" / "moto_server"
START_S = 120.0


def moto_binary() -> str:
    """Returns the program. Skips the test if there is none."""
    found = os.environ.get("PENSTOCK_MOTO_SERVER") or shutil.which("moto_server")
    if found is None and INSTALLED.exists():
        found = str(INSTALLED)
    if found is None:
        pytest.skip("moto_server is not installed: `make tools` installs it")
    return found


class MotoServer:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [moto_binary(), "-H", "127.0.0.1", "-p", "0"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.port = self._wait()
        self._buckets = 0
        # The server logs every request. Nobody reads that, and it must not block.
        self._drainer = threading.Thread(target=self._drain, daemon=True)
        self._drainer.start()

    def _wait(self) -> int:
        """Returns the port as soon as the server says it."""
        killer = threading.Timer(patient(START_S), self.process.kill)
        killer.start()
        try:
            assert self.process.stderr is not None
            for line in self.process.stderr:
                if found := re.search(r"Running on http://127\.0\.0\.1:(\d+)", line):
                    return int(found[1])
        finally:
            killer.cancel()
        raise AssertionError("moto_server did not start")

    def _drain(self) -> None:
        assert self.process.stderr is not None
        for _ in self.process.stderr:
            pass

    def new_bucket(self) -> str:
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        connection = HTTPConnection("127.0.0.1", self.port, timeout=patient(60.0))
        connection.request("PUT", f"/{name}")
        assert connection.getresponse().status == 200
        connection.close()
        return name

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self._drainer.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
