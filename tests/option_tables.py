"""Writes the tables of options in docs/CLIENTS.md: `python -m option_tables`, in this folder.

`src/penstock/client/options.py` describes each option. The same text is in `help()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.client.option_help import describe
from penstock.client.options import AdminOptions, ClientOptions, ConsumerOptions, ProducerOptions

PAGE = Path(__file__).resolve().parents[1] / "docs" / "CLIENTS.md"
CLIENTS: Mapping[str, type[ClientOptions]] = {
    "All clients": ClientOptions,
    "Producer": ProducerOptions,
    "Consumer": ConsumerOptions,
    "Admin": AdminOptions,
}


def table(options: type[ClientOptions]) -> str:
    """The options that only this client has, one in each row."""
    shared = set() if options is ClientOptions else ClientOptions.names()
    rows = ["| option | default | in Kafka | |", "|---|---|---|---|"]
    for name, default, kafka, text in describe(options):
        if name not in shared:
            rows.append(f"| `{name}` | `{default}` | {f'`{kafka}`' if kafka else ''} | {text} |")
    return "\n".join(rows) + "\n"


def written(page: str) -> str:
    """The page with the table below each client's heading replaced."""
    for heading, options in CLIENTS.items():
        before, mark, after = page.partition(f"\n### {heading}\n\n")
        assert mark, f"the page has no heading {heading}"
        _, gap, rest = after.partition("\n\n")
        page = before + mark + table(options) + gap[1:] + rest
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
