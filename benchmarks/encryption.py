"""How fast is an encrypted topic compared with a plain one?

Produce: prebuilt requests with one batch each, acks=1, on topics with `durability=replicated`, so
that the disk does not hide the cost. Fetch: responses of 1 MiB; those of the plain topic are sent
from its file. Both topics are on the same broker and are loaded in turns, in short rounds, so other
work on the machine affects both. What counts is the ratio.

A plain topic costs what it did before: its files are opened as they are. Compare two versions with
`python -m benchmarks.broker --against`.

Run it from the project's root: `python -m benchmarks.encryption --json`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from contextlib import ExitStack
from functools import partial
from typing import Final

from benchmarks.broker import (
    FETCHED_BATCH_BYTES,
    FETCHED_LOG_BYTES,
    KIB,
    MIB,
    Bench,
    batch_of,
    fetch_request,
    produce_request,
    start_broker,
)
from benchmarks.load import Summary, as_json, show, take_turns
from penstock.storage.key_file import KeySet, write_keys

KEY: Final = "bench-key"
PRODUCE_BYTES: Final = (16 * KIB, 128 * KIB)
TARGET: Final = 0.5


def compare(bench: Bench, rounds: int, seconds: float) -> dict[str, dict[str, Summary]]:
    found = {}
    for size in PRODUCE_BYTES:
        batch = batch_of(size)
        found[f"produce_{size}"] = take_turns(
            {
                "plain": partial(bench.produce, batch, seconds),
                "encrypted": partial(bench.produce, batch, seconds, KEY),
            },
            rounds,
        )
        show(f"produce, {size // KIB} KiB", found[f"produce_{size}"])
    requests = {"plain": _filled(bench, "none"), "encrypted": _filled(bench, KEY)}
    found["fetch"] = take_turns(
        {side: partial(bench.drive, [request], 4, seconds) for side, request in requests.items()},
        rounds,
    )
    show("fetch, 1 MiB, 4 in flight", found["fetch"])
    return found


def _filled(bench: Bench, encryption: str) -> bytes:
    """Creates a topic to read. Returns the request that reads it."""
    topic = bench.create(1, encryption)
    frame = produce_request(topic, 0, batch_of(FETCHED_BATCH_BYTES))
    for _ in range(FETCHED_LOG_BYTES // FETCHED_BATCH_BYTES):
        bench.append(frame)
    request = fetch_request(topic, 0)
    given = bench.fetched_bytes(request)
    if given != MIB:
        raise RuntimeError(f"a fetch of 1 MiB was given {given} bytes")
    return request


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="short rounds, only to see it run")
    parser.add_argument("--directory", help="where to put the data (default: a temporary one)")
    options = parser.parse_args()
    rounds, seconds = (1, 0.3) if options.smoke else (7, 1.0)
    with ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory))
        keys = KeySet()
        keys.add(KEY, os.urandom(32), 1)
        write_keys(f"{root}/keys.json", keys)
        provider = f"encryption.key.provider=file:{root}/keys.json"
        process = stack.enter_context(start_broker(f"{root}/data", settings=[provider]))
        found = compare(Bench(f"{root}/data", stack, process), rounds, seconds)
    ratios = {
        name: round(sides["encrypted"].per_second / sides["plain"].per_second, 3)
        for name, sides in found.items()
    }
    produced = [ratio for name, ratio in ratios.items() if name.startswith("produce")]
    met = min(produced) >= TARGET
    print(f"encrypted / plain: {ratios}; the target of {TARGET} is {'met' if met else 'missed'}")
    if options.json:
        shown = {name: as_json(sides) for name, sides in found.items()}
        print(json.dumps({"ratios": ratios, "target": TARGET, "met": met, "measured": shown}))


if __name__ == "__main__":
    main()
