"""The option `profile` of the source and the sink: read where the job is started.

Executors may not have the profile, nor the files that it names. So the driver reads them all and
passes on what they contain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.client.errors import OptionError

_FILES: Final = ("ssl_ca", "ssl_certificate", "ssl_key")
_PEM_MARK: Final = "-----BEGIN"


def read_profile(name: str) -> tuple[str, Mapping[str, str]]:
    """Returns the address and the client's options of a profile, as texts."""
    from penstock.client.profiles import load  # noqa: PLC0415 -- only with a profile

    profile = load(name)
    options: dict[str, str] = {}
    for key, value in profile.options().items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        options[key] = _contents(key, text) if key in _FILES else text
    return profile.bootstrap, options


def _contents(key: str, text: str) -> str:
    if _PEM_MARK in text:
        return text
    try:
        with open(text, encoding="ascii", errors="ignore") as file:
            return file.read()
    except OSError as error:
        raise OptionError(f"{key}: cannot read {text}: {error.strerror}") from None
