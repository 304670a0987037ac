"""Feeds damaged requests to a whole broker and checks that it stays healthy.

Frames go straight into sessions of a broker in this process (`fuzz`), or through sockets to a
broker in another process, with wrong lengths and connections that break off anywhere
(`fuzz_sockets`). `fuzz` checks for every frame:

- The result is a response that decodes, no response, or a ProtocolError. No other exception occurs,
  not even one that was caught, logged and answered with UNKNOWN_SERVER_ERROR.
- It takes at most `FRAME_SECONDS_MAX` of processor time.
- It allocates at most 8 times its size plus 1 MiB, plus its response (measured on a sample).

Both check that a canary client, whose topic no damaged frame names, is not disturbed.

Run it for longer: `PYTHONPATH=tests python -m broker.fuzzing --frames 1000000 --seed 1`
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import json
import logging
import random
import resource
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from penstock.net.session import Session
from penstock.records.batch import iter_batches
from penstock.records.record import Record, build_batch, read_records
from penstock.testing.slowness import patient
from penstock.wire.api import ApiKey
from penstock.wire.codec import decode_response, encode_request, response_class
from penstock.wire.errors import ProtocolError
from penstock.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from penstock.wire.messages.base import Buffer, Request, Response

from .fuzz_corpus import NOW_MS, Ask, corpus, get_to_know, mutate
from .harness import BrokerHarness, HarnessPeer, open_harness

R = TypeVar("R", bound=Response)
Say = Callable[[str], None]

FRAME_SECONDS_MAX = 2.0
FRAMES_PER_HARNESS = 50_000
"""The broker is replaced after this many frames. The topics and groups that frames created slow
down all later frames.
"""
FRAMES_PER_CONNECTION = 50
FRAMES_PER_CANARY = 1_000
FRAMES_PER_TURN = 8
"""The event loop runs once after this many frames, to do what they asked for."""
CHANGE_OF_SUBJECT = 0.7
"""The probability that the next frame is made from another request. Otherwise it is made from the
same one again, because sessions have state.
"""
MEMORY_SAMPLED = 50
HANG_S = 60
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
}


@dataclass
class Findings:
    """What went wrong: each kind of failure once, with the first frame that showed it."""

    frames: int = 0
    answered: int = 0
    refused: int = 0
    waited: int = 0
    canaries: int = 0
    slowest_s: float = 0.0
    memory_max: int = 0
    """The most memory that a sampled frame took beyond its response and 8 times its size."""
    seconds: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)

    def fail(self, kind: str, detail: str) -> None:
        self.failures.setdefault(kind, detail)

    def fail_with(self, error: BaseException, frame: Buffer) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1:]
        where = f"{last[0].filename}:{last[0].lineno}" if last else "nowhere"
        trace = "".join(traceback.format_exception(error))
        self.fail(f"{type(error).__name__} at {where}", f"{describe(frame)}\n{trace}")


def describe(frame: Buffer) -> str:
    """Returns enough of a frame to send it again."""
    data = bytes(frame)
    key, version = int.from_bytes(data[:2], "big"), int.from_bytes(data[2:4], "big")
    return f"API {key} version {version}, {len(data)} bytes: {data[:400].hex()}"


class _LoggedErrors(logging.Handler):
    """Collects the errors that the broker caught and logged as its own."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(logging.ERROR)
        self._findings = findings
        self.frame: Buffer = b""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._findings.fail_with(error, self.frame)
        else:
            text = record.getMessage()
            self._findings.fail(f"logged: {record.msg}", f"{text}\n{describe(self.frame)}")


class Canary:
    """A client that does everything right: metadata, produce and fetch."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._sent = 0

    async def prepare(self) -> None:
        configs = [
            CreateTopicsRequest.Config("max.message.bytes", "100000"),
            CreateTopicsRequest.Config("durability", "replicated"),
        ]
        topic = CreateTopicsRequest.Topic("canary", 1, 1, configs=configs)
        created = await self._ask(CreateTopicsRequest([topic], 10_000), 7, CreateTopicsResponse)
        assert created.topics[0].error_code == 0, created

    async def sing(self) -> None:
        wanted = MetadataRequest([MetadataRequest.Topic(name="canary")])
        metadata = await self._ask(wanted, 12, MetadataResponse)
        topic = metadata.topics[0]
        assert (topic.error_code, topic.partitions[0].leader_id) == (0, 0), topic
        value = b"canary %d" % self._sent
        data = ProduceRequest.Partition(0, build_batch([Record(0, NOW_MS, None, value)]))
        request = ProduceRequest(
            None, -1, 10_000, [ProduceRequest.Topic("canary", partition_data=[data])]
        )
        produced = await self._ask(request, 9, ProduceResponse)
        written = produced.responses[0].partition_responses[0]
        assert (written.error_code, written.base_offset) == (0, self._sent), written
        asked = FetchRequest.Partition(0, fetch_offset=self._sent, partition_max_bytes=1 << 20)
        fetch = FetchRequest(
            max_wait_ms=0,
            max_bytes=1 << 20,
            topics=[FetchRequest.Topic("canary", partitions=[asked])],
        )
        fetched = await self._ask(fetch, 11, FetchResponse)
        given = fetched.responses[0].partitions[0].records or b""
        records = memoryview(b"".join(given) if isinstance(given, list) else given)
        found = [
            record.value
            for position, header in iter_batches(records)
            for record in read_records(records[position : position + header.size], header)
        ]
        assert found == [value], f"canary {self._sent} read {found}"
        self._sent += 1


class _Feeder:
    """Feeds frames to sessions of one broker and checks the responses."""

    def __init__(self, harness: BrokerHarness, findings: Findings, logged: _LoggedErrors) -> None:
        self._server = harness.broker.server
        self._findings = findings
        self._logged = logged
        self._session: Session | None = None
        self._fed = 0

    async def feed(self, frame: bytearray) -> None:
        findings = self._findings
        sampled = findings.frames % MEMORY_SAMPLED == 0
        findings.frames += 1
        self._logged.frame = bytes(frame)
        session = self._open_session()
        began = time.thread_time()
        if sampled:
            tracemalloc.start()
        try:
            answer: Any = session.on_frame(memoryview(frame))
        except ProtocolError:
            answer = None
            findings.refused += 1
            self._close_session()
        except BaseException as error:  # noqa: BLE001 - any exception is a finding
            answer = None
            findings.fail_with(error, self._logged.frame)
        if sampled:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            self._weigh(peak, answer)
        elapsed = time.thread_time() - began
        findings.slowest_s = max(findings.slowest_s, elapsed)
        if elapsed > FRAME_SECONDS_MAX:
            findings.fail("slow", f"{elapsed:.1f} s for {describe(self._logged.frame)}")
        if isinstance(answer, asyncio.Future):
            findings.waited += 1
            answer.add_done_callback(self._checker(self._logged.frame))
        elif answer is not None:
            self._check(answer, self._logged.frame)
        if findings.frames % FRAMES_PER_TURN == 0:
            await asyncio.sleep(0)

    def _open_session(self) -> Session:
        if self._fed >= FRAMES_PER_CONNECTION:
            self._close_session()
        if self._session is None:
            self._session = self._server.new_session(HarnessPeer())
            self._fed = 0
        self._fed += 1
        return self._session

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.on_closed()
            self._session = None

    def _weigh(self, peak: int, answer: Any) -> None:
        frame = self._logged.frame
        given = sum(map(len, answer)) if isinstance(answer, list | tuple) else 0
        beyond = peak - given - 8 * len(frame)
        self._findings.memory_max = max(self._findings.memory_max, beyond)
        if beyond > 1 << 20:
            self._findings.fail(
                f"memory {frame[:4].hex()}", f"{peak} bytes at most for {describe(frame)}"
            )

    def _checker(self, frame: bytes) -> Callable[[asyncio.Future[Any]], None]:
        def check(done: asyncio.Future[Any]) -> None:
            if done.cancelled():
                return
            error = done.exception()
            if error is None:
                if done.result() is not None:
                    self._check(done.result(), frame)
            elif not isinstance(error, ProtocolError):
                self._findings.fail_with(error, frame)

        return check

    def _check(self, parts: Sequence[Buffer], frame: bytes) -> None:
        """Checks that the response is one frame, for this request, in its version."""
        self._findings.answered += 1
        data = b"".join(parts)
        if int.from_bytes(data[:4], "big") != len(data) - 4 or data[4:8] != frame[4:8]:
            self._findings.fail("not an answer", f"{data[:40].hex()} for {describe(frame)}")
            return
        key, version = ApiKey(int.from_bytes(frame[:2], "big")), int.from_bytes(frame[2:4], "big")
        try:
            # ApiVersions in a version that the broker does not know is answered in version 0.
            supported = key != ApiKey.API_VERSIONS or version <= 4
            decode_response(response_class(key), memoryview(data)[4:], version if supported else 0)
        except ProtocolError as error:
            self._findings.fail_with(error, frame)


def quiet(_: str) -> None:
    pass


async def fuzz(frames: int, seed: int, say: Say = quiet) -> Findings:
    """Feeds this many frames to brokers in this process, one broker after the other."""
    findings = Findings()
    logged = _LoggedErrors(findings)
    logger = logging.getLogger("penstock")
    logger.addHandler(logged)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, about: _on_loop_error(findings, about))
    began = time.perf_counter()
    try:
        for number in count():
            part = min(FRAMES_PER_HARNESS, frames - findings.frames)
            if part <= 0:
                break
            with tempfile.TemporaryDirectory() as directory:
                async with open_harness(Path(directory), kafka=SETTINGS) as harness:
                    await _play(harness, part, f"{seed} {number}", findings, logged)
            say(
                f"{findings.frames:,} frames: {findings.answered:,} answered,"
                f" {findings.refused:,} refused, {findings.waited:,} had to wait,"
                f" {len(findings.failures)} failures, {time.perf_counter() - began:.0f} s"
            )
    finally:
        logger.removeHandler(logged)
        findings.seconds = round(time.perf_counter() - began, 1)
    return findings


def _on_loop_error(findings: Findings, about: dict[str, Any]) -> None:
    error = about.get("exception")
    if error is not None:
        findings.fail_with(error, b"")
    else:
        findings.fail(f"loop: {about['message']}", str(about))


async def _play(
    harness: BrokerHarness, frames: int, seed: str, findings: Findings, logged: _LoggedErrors
) -> None:
    chance = random.Random(seed)
    known = await get_to_know(harness.ask)
    canary = Canary(harness.ask)
    await canary.prepare()
    # This takes seconds on a busy machine, and the broker has to renew its lease meanwhile.
    seeds = await asyncio.to_thread(corpus, known, chance.getrandbits(16), 2)
    feeder = _Feeder(harness, findings, logged)
    await _warm_up(harness, seeds)
    seed_frame = seeds[0]
    for number in range(frames):
        if number % FRAMES_PER_CANARY == 0:
            faulthandler.dump_traceback_later(patient(HANG_S), exit=True)
            await _sing(canary, findings)
        if chance.random() < CHANGE_OF_SUBJECT:
            seed_frame = chance.choice(seeds)
        await feeder.feed(mutate(seed_frame, seeds, chance))
    await _sing(canary, findings)
    await harness.broker.replicas.settled()
    faulthandler.cancel_dump_traceback_later()


async def _warm_up(harness: BrokerHarness, seeds: Sequence[bytes]) -> None:
    """Compiles every codec and loads every handler, so that no frame is charged for that memory."""
    session = harness.broker.server.new_session(HarnessPeer())
    for frame in seeds:
        with suppress(Exception):  # it occurs again when the frame is fed, and is reported then
            session.on_frame(memoryview(bytearray(frame)))
        await asyncio.sleep(0)


async def _sing(canary: Canary, findings: Findings) -> None:
    findings.canaries += 1
    try:
        async with asyncio.timeout(patient(120)):
            await canary.sing()
    except (AssertionError, ProtocolError, TimeoutError) as error:
        findings.fail_with(error, b"")


class Caller:
    """A well-behaved client on one connection. The canary uses its `ask`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation_ids = count(1)

    @classmethod
    async def connect(cls, address: str) -> Caller:
        return cls(*await _connect(address))

    async def ask(self, request: Request, version: int, response: type[R]) -> R:
        correlation_id = next(self._correlation_ids)
        self._writer.writelines(encode_request(request, version, correlation_id, "caller"))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        answer = await self._reader.readexactly(size)
        answered, message = decode_response(response, memoryview(answer), version)
        assert answered == correlation_id
        return message

    def close(self) -> None:
        self._writer.close()


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def fuzz_sockets(
    address: str, frames: int, seed: int, at_once: int = 8, say: Say = quiet
) -> Findings:
    """Sends damaged frames to a broker in another process, over connections that break off
    anywhere.
    """
    findings = Findings()
    began = time.perf_counter()
    caller = await Caller.connect(address)
    canary = Canary(caller.ask)
    await canary.prepare()
    chance = random.Random(f"sockets {seed}")
    seeds = corpus(await get_to_know(caller.ask), seed, 1)

    async def abuse() -> None:
        while findings.frames < frames:
            await _abuse(address, [*_damaged(seeds, chance)], chance, findings)

    async def watch() -> None:
        while findings.frames < frames:
            await _sing(canary, findings)
            say(f"{findings.frames:,} frames, {findings.canaries} canaries")
            await asyncio.sleep(0.2)

    try:
        async with asyncio.TaskGroup() as tasks:
            for work in [abuse() for _ in range(at_once)] + [watch()]:
                tasks.create_task(work)
        await _sing(canary, findings)
    finally:
        caller.close()
    findings.seconds = round(time.perf_counter() - began, 1)
    return findings


def _damaged(seeds: Sequence[bytes], chance: random.Random) -> Iterator[bytes]:
    """Yields the frames of one connection. Their lengths may be wrong too."""
    for _ in range(chance.randint(1, 30)):
        frame = mutate(chance.choice(seeds), seeds, chance)
        size = len(frame)
        if chance.random() < 0.05:
            size = chance.choice((0, -1, 2**31 - 1, size + 1, size // 2, chance.getrandbits(24)))
        yield size.to_bytes(4, "big", signed=True) + frame


async def _abuse(
    address: str, frames: Sequence[bytes], chance: random.Random, findings: Findings
) -> None:
    reader, writer = await _connect(address)
    findings.frames += len(frames)
    data = b"".join(frames)
    cut = chance.randrange(len(data))
    try:
        writer.write(data[:cut])
        await asyncio.sleep(0)
        if chance.random() < 0.8:
            writer.write(data[cut:])
            writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(chance.choice((0.001, 0.05, 0.5))):
                while await reader.read(1 << 16):
                    pass
    except OSError:
        findings.refused += 1
    finally:
        writer.transport.abort()


def run(main: Any) -> Any:
    """Runs a coroutine on uvloop, as brokers do."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--bootstrap", metavar="HOST:PORT", help="send them to a running broker that may be spoilt"
    )
    options = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if options.bootstrap:
        findings: Findings = asyncio.run(
            fuzz_sockets(options.bootstrap, options.frames, options.seed, say=say)
        )
    else:
        findings = run(fuzz(options.frames, options.seed, say))
    for kind, detail in findings.failures.items():
        say(f"--- {kind}\n{detail}")
    report = asdict(findings) | {"failures": list(findings.failures)}
    report["resident_max_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(report))
    return 1 if findings.failures else 0


if __name__ == "__main__":
    sys.exit(main())
