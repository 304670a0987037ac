"""A key provider: a program that wraps and unwraps data keys, for any key service.

    PROGRAM wrap KEY-NAME      reads a data key from standard input, prints its wrapped form
    PROGRAM unwrap KEY-NAME    the opposite

Both are lines of base64. Exit code 0 means success, 3 that there is no such key, and any other that
it cannot be had now. The first line of standard error is shown in the broker's error, so it must
not contain a key.
"""

from __future__ import annotations

import base64
import subprocess
from typing import Final

from penstock.storage.data_keys import KeyDropped, KeyUnavailable

TIMEOUT_S: Final = 15.0
NO_SUCH_KEY: Final = 3
_OUTPUT_MAX: Final = 64 << 10


class KeyCommand:
    """The key provider of `encryption.key.provider=command:PATH`."""

    is_slow = True

    def __init__(self, program: str) -> None:
        self._program = program

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._program})"

    def wrap(self, key_name: str, data_key: bytes) -> bytes:
        return self._run("wrap", key_name, data_key)

    def unwrap(self, key_name: str, token: bytes) -> bytes:
        return self._run("unwrap", key_name, token)

    def _run(self, verb: str, key_name: str, data: bytes) -> bytes:
        what = f"{self._program} {verb} {key_name}"
        try:
            done = subprocess.run(  # noqa: S603 - the operator names the program; no shell
                [self._program, verb, key_name],
                input=base64.b64encode(data) + b"\n",
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            # Without the cause: it has the input.
            raise KeyUnavailable(f"`{what}` did not finish within {TIMEOUT_S:g} s") from None
        except OSError as error:
            raise KeyUnavailable(f"{self._program} cannot be run: {error.strerror}") from error
        told = done.stderr.decode(errors="replace").strip().splitlines()[:1]
        because = f": {told[0][:200]}" if told else ""
        if done.returncode == NO_SUCH_KEY:
            raise KeyDropped(f"`{what}` says that there is no such key{because}")
        if done.returncode:
            raise KeyUnavailable(f"`{what}` failed with exit code {done.returncode}{because}")
        try:
            return base64.b64decode(done.stdout[:_OUTPUT_MAX].strip(), validate=True)
        except ValueError:
            raise KeyUnavailable(f"`{what}` did not print base64") from None
