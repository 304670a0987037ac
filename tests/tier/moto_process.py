"""moto's S3 server, an independent implementation of S3, in a process of its own.

It is not a dependency of the tests: moto needs botocore, and botocore needs an older version of
python-dateutil than the other tools. `make tools` installs it in an environment of its own.

The server handles one request at a time. moto itself does not create atomically: with threads, as
`moto_server` runs it, two of 16 creates of one name have succeeded at once on a busy machine. The
probe refused it.
"""

from __future__ import annotations

import os
import subprocess
import threading
from http.client import HTTPConnection
from pathlib import Path

import pytest

from penstock.testing.slowness import patient

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ROOT / ".tools" / "moto" / "bin" / "python"
START_S = 120.0
SERVE = """
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

app = DomainDispatcherApplication(create_backend_app)
server = make_server("127.0.0.1", 0, app, threaded=False)
print(server.server_port, flush=True)
server.serve_forever()
"""


def moto_python() -> str:
    """Returns a Python that has moto. Skips the test if there is none."""
    found = os.environ.get("PENSTOCK_MOTO_PYTHON")
    if found is None and INSTALLED.exists():
        found = str(INSTALLED)
    if found is None:
        pytest.skip("moto is not installed: `make tools` installs it")
    return found


class MotoServer:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [moto_python(), "-c", SERVE],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.port = self._wait()
        self._buckets = 0

    def _wait(self) -> int:
        """Returns the port as soon as the server says it."""
        killer = threading.Timer(patient(START_S), self.process.kill)
        killer.start()
        try:
            assert self.process.stdout is not None
            return int(self.process.stdout.readline())
        finally:
            killer.cancel()

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
        assert self.process.stdout is not None
        self.process.stdout.close()
