"""Shows the examples in docstrings as Python on the documentation site.

In the source an example is a plain indented block below `Example:`, which reads best in `help()`.
This extension of griffe, which reads the docstrings for the site, marks the blocks as Python.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

BLOCK = re.compile(r"^Example:\n((?: {4}.*\n|\n)+)", re.MULTILINE)


def as_fence(match: re.Match[str]) -> str:
    return f"Example:\n\n```python\n{textwrap.dedent(match[1]).rstrip()}\n```\n\n"


class HighlightExamples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = BLOCK.sub(as_fence, obj.docstring.value + "\n")
