"""Lanes answer just as the long way does; they are only quicker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.broker.produce_lane import ProduceLanes
from penstock.net.session import Session
from penstock.records.record import Record, build_batch
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ProduceRequest, ProduceResponse
from penstock.wire.messages.base import Buffer

from .stage import NOW_MS, Stage, StagePeer, staged


def request(topic: str, index: int, batch: bytearray, acks: int = -1) -> ProduceRequest:
    partition = ProduceRequest.Partition(index, batch)
    return ProduceRequest(
        acks=acks,
        timeout_ms=5000,
        topic_data=[ProduceRequest.Topic(topic, partition_data=[partition])],
    )


def batch_of(value: bytes, sequence: int = -1) -> bytearray:
    records = [Record(0, NOW_MS, b"k", value)]
    if sequence < 0:
        return build_batch(records)
    return build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)


async def answer(session: Session, asked: ProduceRequest, version: int, number: int) -> bytes:
    parts = encode_request(asked, version, number, "client")
    frame = memoryview(bytearray(b"".join(parts))[4:])
    given = session.on_frame(frame)
    if isinstance(given, asyncio.Future):
        given = await asyncio.wait_for(given, 10)
    assert given is not None
    return b"".join(list[Buffer](given))


async def answers_of(stage: Stage, asked: Sequence[ProduceRequest], version: int) -> list[bytes]:
    """The answers that one connection gets, in order."""
    connection = stage.broker.server.new_session(StagePeer())
    given = []
    for number, each in enumerate(asked):
        given.append(await answer(connection, each, version, number))
    return given


@pytest.mark.parametrize("version", [9, 10, 11])
@pytest.mark.parametrize("acks", [1, -1])
def test_a_lane_answers_as_the_long_way(
    tmp_path: Path, version: int, acks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets, duplicates, refusals, other partitions and topics: byte for byte the same."""
    answers: list[list[bytes]] = []
    served: list[object] = []
    real = ProduceLanes.serve

    for name in ("lanes", "long"):
        (tmp_path / name).mkdir()

    def counted(self: ProduceLanes, frame: memoryview) -> object:
        outcome = real(self, frame)
        served.append(outcome)
        return outcome

    def script() -> list[ProduceRequest]:
        bad = batch_of(b"bad")
        bad[-1] ^= 1
        return [
            *(request("lanes", 0, batch_of(b"%d" % n, n), acks) for n in range(4)),
            request("lanes", 1, batch_of(b"other"), acks),
            request("lanes", 0, batch_of(b"3", 3), acks),
            request("lanes", 0, batch_of(b"gap", 9), acks),
            request("lanes", 0, bad, acks),
            request("lanes", 9, batch_of(b"nowhere"), acks),
            request("other", 0, batch_of(b"topic"), acks),
            request("other", 0, batch_of(b"again"), acks),
            request("lanes", 0, batch_of(b"4", 4), acks),
        ]

    @staged
    async def scene(stage: Stage) -> None:
        await stage.create("lanes", 2)
        await stage.create("other", 1)
        answers.append(await answers_of(stage, script(), version))

    monkeypatch.setattr(ProduceLanes, "serve", counted)
    scene(tmp_path / "lanes")
    taken = sum(outcome is not None for outcome in served)
    assert taken >= 6
    monkeypatch.setattr(ProduceLanes, "serve", lambda self, frame: None)
    scene(tmp_path / "long")
    with_lanes, without = answers
    assert with_lanes == without
    _, first = decode_response(ProduceResponse, memoryview(with_lanes[0])[4:], version)
    assert first.responses[0].partition_responses[0].error_code == ErrorCode.NONE
