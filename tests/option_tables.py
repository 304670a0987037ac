"""Writes the tables of options in docs/CLIENTS.md: `python -m option_tables`, in this folder.

`src/penstock/client/options.py` describes each option of a client, and
`src/penstock/client/processing/run_options.py` those of `run`. The same text is in `help()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.client.option_help import describe
from penstock.client.options import AdminOptions, ClientOptions, ConsumerOptions, ProducerOptions
from penstock.client.processing.run_options import RunOptions

PAGE = Path(__file__).resolve().parents[1] / "docs" / "CLIENTS.md"
TABLES: Mapping[str, type[Any]] = {
    "All clients": ClientOptions,
    "Producer": ProducerOptions,
    "Consumer": ConsumerOptions,
    "Admin": AdminOptions,
    "Consumer.run": RunOptions,
}
"""Heading -> the dataclass whose options the table below it has."""


def table(options: type[Any]) -> str:
    """Returns the options in rows, without those that all clients have."""
    has_kafka = issubclass(options, ClientOptions)
    is_client = has_kafka and options is not ClientOptions
    shared = ClientOptions.names() if is_client else frozenset()
    head = ["option", "default", *(["in Kafka"] if has_kafka else []), ""]
    rows = [head]
    for name, default, kafka, text in describe(options):
        if name not in shared:
            other = [f"`{kafka}`" if kafka else ""] if has_kafka else []
            rows.append([f"`{name}`", f"`{default}`", *other, text])
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:], ""])


def written(page: str) -> str:
    """Returns the page with the table below each heading replaced."""
    for heading, options in TABLES.items():
        before, mark, after = page.partition(f"\n### {heading}\n\n")
        assert mark, f"the page has no heading {heading}"
        _, gap, rest = after.partition("\n\n")
        page = before + mark + table(options) + gap[1:] + rest
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
