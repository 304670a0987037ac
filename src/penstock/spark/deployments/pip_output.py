"""What the output of pip says about a failure.

The exit code of pip is the same for a wrong requirement and for an index that cannot be reached,
and so are its last lines: without an answer of the index, it finds no version either. Only its log
(`--log`) has what the index answered.
"""

from __future__ import annotations

import re
from typing import Final

_TEXT_MAX: Final = 600
_INVALID: Final = re.compile(
    r"Invalid requirement|Invalid constraint|Could not open requirements file|no such option|"
    r"is not a supported wheel on this platform|requires a different Python|"
    r"neither 'setup\.py' nor 'pyproject\.toml' found|is not a valid editable requirement|"
    r"does not appear to be a Python project|should either be a path to a local project",
    re.IGNORECASE,
)
"""These do not depend on an index."""
_NOT_THERE: Final = re.compile(r"No matching distribution found|ResolutionImpossible")
_ANSWERED: Final = re.compile(
    r"\(from versions: (?!none\))|404 Client Error|conflicting dependencies"
)
"""An index has said which versions there are, or that there is no such package."""
_TROUBLE: Final = re.compile(
    r"Could not fetch URL \S+: (?!404 Client Error)|Retrying \(|Max retries exceeded|"
    r"connection error|Connection ?(reset|refused|aborted|broken)|timed out|ReadTimeout|"
    r"name resolution|SSLError|ProxyError|No space left|incomplete-download|IncompleteRead",
    re.IGNORECASE,
)


def is_lasting(output: str, log: str) -> bool:
    """Whether another attempt would fail too: pip says clearly that a requirement is invalid, or
    that it does not exist, and the index did answer. `log` is what pip wrote with --log."""
    if _TROUBLE.search(output) or _TROUBLE.search(log):
        return False
    if _INVALID.search(output):
        return True
    return bool(_NOT_THERE.search(output) and (_ANSWERED.search(output) or _ANSWERED.search(log)))


def reason(output: str) -> str:
    """Returns the lines of pip that say what is wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return "; ".join(errors or lines[-2:])[:_TEXT_MAX] or "it gave no reason"
