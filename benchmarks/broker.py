"""How fast is our broker compared with the minimum that a Python broker has to do?

Produce: prebuilt Produce requests with one batch each, acks=1, on topics with
`durability=replicated`. They are compared with the bare loop in `floor.py` that reads a frame,
checks the CRC32C, writes with pwrite and answers. Fetch: responses of 1 MiB, compared with bare
servers that send the same ranges of the same log file.

Both sides run at the same time, each in its own process, and are loaded in turns; see `load.py`.
Every produce round uses its own topic, which is deleted afterwards, and the floor truncates its
file: so neither side waits for dirty pages of the other.

With `--against PENSTOCK`, the command of another version, brokers of both versions run at the same
time and are loaded in turns, in many short rounds, so other work on the machine affects both.
Compare `by_processor`; differences of less than two percent are noise.

Run it from the project's root: `python -m benchmarks.broker --json`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from benchmarks import floor
from benchmarks.load import (
    Address,
    Result,
    ServerProcess,
    Summary,
    as_json,
    drive,
    show,
    stay_apart,
    take_turns,
)
from benchmarks.scale import Client
from penstock.records.record import Record, build_batch
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)

KIB: Final = 1 << 10
MIB: Final = 1 << 20
PRODUCE_BYTES: Final = (KIB, 16 * KIB, 128 * KIB, MIB)
FETCHED_BATCH_BYTES: Final = 16 * KIB
FETCHED_LOG_BYTES: Final = 64 * MIB
CONNECTIONS: Final = floor.CONNECTIONS
TARGETS: Final = {
    "produce_16384": 0.45,
    "produce_131072": 0.7,
    "produce_1048576": 0.8,
    "fetch": 0.7,
}
_READY: Final = re.compile(r"ready bootstrap=([\d.]+):(\d+)")


def start_broker(data: str, penstock: str = "", settings: Sequence[str] = ()) -> ServerProcess:
    def ready(line: str) -> Address | None:
        found = _READY.search(line)
        return (found[1], int(found[2])) if found else None

    penstock = penstock or str(Path(sys.executable).with_name("penstock"))
    command = [penstock, "up", "--data", data, "--port", "0", "--no-console"]
    for setting in (f"disk_reserve_bytes={64 * MIB}", *settings):
        command += ["--set", setting]
    return ServerProcess(command, ready)


def batch_of(size: int) -> bytearray:
    """Returns a batch with one record that has exactly this size in bytes."""
    value_bytes = size - 80
    while True:
        batch = build_batch([Record(0, 1_700_000_000_000, None, b"x" * value_bytes)])
        if len(batch) == size:
            return batch
        value_bytes += size - len(batch)


def produce_request(topic: str, partition: int, batch: bytearray) -> bytes:
    data = ProduceRequest.Partition(partition, batch)
    topics = [ProduceRequest.Topic(topic, partition_data=[data])]
    return b"".join(encode_request(ProduceRequest(None, 1, 30_000, topics), 9, 1, "bench"))


def fetch_request(topic: str, offset: int) -> bytes:
    asked = FetchRequest.Partition(0, fetch_offset=offset, partition_max_bytes=MIB)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=MIB,
        session_epoch=-1,
        topics=[FetchRequest.Topic(topic, partitions=[asked])],
    )
    return b"".join(encode_request(request, 11, 1, "bench"))


class Bench:
    """One broker, and a client that creates topics on it between the rounds."""

    def __init__(self, data: str, stack: ExitStack, process: ServerProcess | None = None) -> None:
        self.data = data
        self.process = process or stack.enter_context(start_broker(data))
        self._client = Client(self.process.address)
        self._names = (f"bench-{number}" for number in count())

    def create(self, partitions: int, encryption: str = "none") -> str:
        name = next(self._names)
        configs = [CreateTopicsRequest.Config("durability", "replicated")]
        if encryption != "none":
            configs.append(CreateTopicsRequest.Config("encryption", encryption))
        wanted = CreateTopicsRequest([CreateTopicsRequest.Topic(name, partitions, 1, [], configs)])
        answer = self._client.ask(wanted, 7, CreateTopicsResponse)
        if answer.topics[0].error_code:
            raise RuntimeError(f"no topic: {answer.topics[0].error_message}")
        return name

    def delete(self, name: str) -> None:
        doomed = DeleteTopicsRequest([DeleteTopicsRequest.Topic(name)], timeout_ms=30_000)
        self._client.ask(doomed, 6, DeleteTopicsResponse)

    def append(self, frame: bytes) -> int:
        """Sends one produce request that must succeed. Returns its offset."""
        answer = self._client.exchange(frame)
        produced = decode_response(ProduceResponse, memoryview(answer), 9)[1]
        written = produced.responses[0].partition_responses[0]
        if written.error_code:
            raise RuntimeError(f"the produce failed: {written.error_message}")
        return written.base_offset

    def fetched_bytes(self, frame: bytes) -> int:
        fetched = decode_response(FetchResponse, memoryview(self._client.exchange(frame)), 11)[1]
        records = fetched.responses[0].partitions[0].records or b""
        return len(b"".join(records)) if isinstance(records, list) else len(records)

    def produce(self, batch: bytearray, seconds: float, encryption: str = "none") -> Result:
        topic = self.create(CONNECTIONS, encryption)
        requests = [produce_request(topic, index, batch) for index in range(CONNECTIONS)]
        for request in requests:
            self.append(request)
        try:
            return self.drive(requests, floor.in_flight_for(len(batch)), seconds)
        finally:
            self.delete(topic)

    def drive(self, requests: list[bytes], in_flight: int, seconds: float) -> Result:
        return drive(
            self.process.address,
            requests,
            in_flight=in_flight,
            seconds=seconds,
            server_pid=self.process.pid,
        )

    def fetched_log(self) -> tuple[str, str]:
        """Creates a topic to read. Returns its name and its log file."""
        topic = self.create(1)
        frame = produce_request(topic, 0, batch_of(FETCHED_BATCH_BYTES))
        for _ in range(FETCHED_LOG_BYTES // FETCHED_BATCH_BYTES):
            self.append(frame)
        found = list(Path(self.data).glob(f"**/{topic}-0/*.log"))
        if len(found) != 1 or os.path.getsize(found[0]) != FETCHED_LOG_BYTES:
            raise RuntimeError(f"the log of {topic} is not where it is looked for: {found}")
        return topic, str(found[0])


def produce(bench: Bench, root: str, rounds: int, seconds: float) -> dict[str, dict[str, Summary]]:
    found = {}
    with floor.start("floor", f"{root}/floor") as bare:
        for size in PRODUCE_BYTES:
            batch = batch_of(size)
            in_flight = floor.in_flight_for(size)
            bare_requests = [floor.produce_request(size)] * CONNECTIONS
            found[f"produce_{size}"] = take_turns(
                {
                    "floor": partial(floor.load, bare, bare_requests, in_flight, seconds),
                    "broker": partial(bench.produce, batch, seconds),
                },
                rounds,
            )
            title = f"produce, {size // KIB} KiB, {CONNECTIONS} x {in_flight} in flight"
            show(title, found[f"produce_{size}"])
    return found


def produce_against(
    bench: Bench, other: Bench, rounds: int, seconds: float
) -> dict[str, dict[str, Summary]]:
    """Loads this version and another one in turns."""
    found = {}
    for size in PRODUCE_BYTES:
        batch = batch_of(size)
        found[f"produce_{size}"] = take_turns(
            {
                "other": partial(other.produce, batch, seconds),
                "broker": partial(bench.produce, batch, seconds),
            },
            rounds,
        )
        show(f"produce, {size // KIB} KiB", found[f"produce_{size}"])
    return found


def fetch(bench: Bench, rounds: int, seconds: float) -> dict[str, Summary]:
    topic, path = bench.fetched_log()
    request = fetch_request(topic, 0)
    given = bench.fetched_bytes(request)
    if given != MIB:
        raise RuntimeError(f"a fetch of 1 MiB was given {given} bytes")
    with ExitStack() as stack:
        sides = {
            kind: partial(
                floor.load,
                stack.enter_context(floor.start(kind, path)),
                floor.fetch_requests(1),
                4,
                seconds,
            )
            for kind in ("pread", "sendfile", "uvloop")
        }
        found = take_turns({**sides, "broker": partial(bench.drive, [request], 4, seconds)}, rounds)
    show("fetch, 1 MiB, 4 in flight", found)
    return found


def ratios(found: Mapping[str, Mapping[str, Summary]]) -> dict[str, dict[str, float]]:
    """Returns our speed relative to the first side, by the clock and by processor time."""
    shares = {}
    for name, summaries in found.items():
        against, ours = next(iter(summaries.values())), summaries["broker"]
        shares[name] = {
            "by_clock": ours.per_second / against.per_second,
            "by_processor": ours.per_server_cpu_s / against.per_server_cpu_s,
            "requests_per_server_cpu_s": ours.per_server_cpu_s,
        }
        if name in TARGETS:
            shares[name]["target"] = TARGETS[name]
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="short rounds, only to see it run")
    parser.add_argument("--directory", help="where to put the data (default: a temporary one)")
    parser.add_argument(
        "--apart", action="store_true", help="generator and servers on processors of their own"
    )
    parser.add_argument("--only", choices=("produce", "fetch"), help="one of the two")
    parser.add_argument("--against", help="the `penstock` of another version, to compare with")
    options = parser.parse_args()
    if options.apart:
        stay_apart()
    rounds, seconds = (1, 0.05) if options.smoke else (5, 0.4)
    root = tempfile.mkdtemp(prefix="penstock-bench-", dir=options.directory)
    found: dict[str, dict[str, Summary]] = {}
    try:
        with ExitStack() as stack:
            bench = Bench(f"{root}/data", stack)
            if options.against:
                process = stack.enter_context(start_broker(f"{root}/other", options.against))
                other = Bench(f"{root}/other", stack, process)
                found = produce_against(bench, other, 1 if options.smoke else 25, seconds)
            elif options.only != "fetch":
                found |= produce(bench, root, rounds, seconds)
            if options.only != "produce" and not options.against:
                found["fetch"] = fetch(bench, rounds, seconds)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    shares = ratios(found)
    print()
    for name, share in shares.items():
        print(name, *(f"{key}={value:.2f}" for key, value in share.items()))
    if options.json:
        sides = {name: as_json(summaries) for name, summaries in found.items()}
        print(json.dumps({"ratios": shares, "sides": sides}))


if __name__ == "__main__":
    main()
