"""How fast does our codec encode and decode messages, compared with kafka-python's?

    python benchmarks/wire.py [--json]

Measured in CPU time, the best of many rounds, so that a busy machine disturbs little. With --json
the last line is one JSON object, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import struct
import time
import warnings
from collections.abc import Callable
from typing import Any

from penstock.wire.codec import (
    decode_request,
    decode_response,
    encode,
    encode_request,
    encode_response,
)
from penstock.wire.framing import FrameReader
from penstock.wire.messages import MetadataResponse, ProduceRequest, ProduceResponse

BATCH_BYTES = 16 << 10


def microseconds(work: Callable[[], object], rounds: int = 40, seconds: float = 0.02) -> float:
    """Returns the CPU time of one call in the best of several sufficiently long rounds."""
    count = 1
    while True:
        start = time.process_time()
        for _ in range(count):
            work()
        spent = time.process_time() - start
        if spent > seconds:
            break
        count *= 2
    best = spent
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(count):
            work()
        best = min(best, time.process_time() - start)
    return best / count * 1e6


def produce_request() -> ProduceRequest:
    partition = ProduceRequest.Partition(3, bytes(BATCH_BYTES))
    return ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[ProduceRequest.Topic("orders", partition_data=[partition])],
    )


def produce_response() -> ProduceResponse:
    partition = ProduceResponse.Partition(3, 0, 12_345, -1, 0)
    return ProduceResponse([ProduceResponse.Topic("orders", partition_responses=[partition])])


def metadata_response() -> MetadataResponse:
    def partition(index: int) -> MetadataResponse.Partition:
        return MetadataResponse.Partition(0, index, index % 3, 5, [0, 1, 2], [0, 1, 2], [])

    return MetadataResponse(
        brokers=[MetadataResponse.Broker(n, f"broker-{n}.example", 9092) for n in range(3)],
        cluster_id="AbCdEfGhIjKlMnOpQrStUw",
        controller_id=1,
        topics=[
            MetadataResponse.Topic(
                0, f"topic-{n}", bytes([n] * 16), False, [partition(index) for index in range(6)]
            )
            for n in range(10)
        ],
    )


def ours() -> dict[str, float]:
    request = b"".join(encode_request(produce_request(), 9, 7, "producer-1"))
    frame = memoryview(bytearray(request))[4:]
    produced, metadata = produce_response(), metadata_response()
    metadata_frame = memoryview(bytearray(b"".join(encode_response(metadata, 12, 7))))[4:]
    reader = FrameReader(1 << 24)
    small = (struct.pack(">i", 60) + bytes(60)) * 100
    large = struct.pack(">i", 1 << 20) + bytes(1 << 20)
    pieces = [large[start : start + 65_536] for start in range(0, len(large), 65_536)]
    return {
        "produce_v9_request_decode": microseconds(lambda: decode_request(frame)),
        "produce_v9_response_encode": microseconds(lambda: encode_response(produced, 9, 7)),
        "metadata_v12_10x6_encode": microseconds(lambda: encode_response(metadata, 12, 7)),
        "metadata_v12_10x6_decode": microseconds(
            lambda: decode_response(MetadataResponse, metadata_frame, 12)
        ),
        "framing_16k_whole": microseconds(lambda: reader.feed(request)),
        "framing_100_small": microseconds(lambda: reader.feed(small)),
        "framing_1m_in_64k": microseconds(lambda: [reader.feed(piece) for piece in pieces]),
    }


def kafka_python() -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka.protocol.metadata import MetadataResponse as TheirMetadata
        from kafka.protocol.producer import ProduceRequest as TheirRequest
        from kafka.protocol.producer import ProduceResponse as TheirResponse

    def readable(theirs: Any, data: bytes, version: int) -> Any:
        message = theirs.decode(data, version=version)
        message._version = version
        message.with_header(7)
        return message

    request = b"".join(encode_request(produce_request(), 9, 7, "producer-1"))[4:]
    produced = readable(TheirResponse, encode(produce_response(), 9), 9)
    metadata_bytes = b"".join(encode_response(metadata_response(), 12, 7))[4:]
    metadata = readable(TheirMetadata, encode(metadata_response(), 12), 12)
    return {
        "produce_v9_request_decode": microseconds(
            lambda: TheirRequest.decode(request, version=9, header=True)
        ),
        "produce_v9_response_encode": microseconds(
            lambda: produced.encode(header=True, framed=True)
        ),
        "metadata_v12_10x6_encode": microseconds(lambda: metadata.encode(header=True, framed=True)),
        "metadata_v12_10x6_decode": microseconds(
            lambda: TheirMetadata.decode(metadata_bytes, version=12, header=True)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    arguments = parser.parse_args()
    results = {"penstock": ours(), "kafka_python": kafka_python()}
    for name, value in results["penstock"].items():
        theirs = results["kafka_python"].get(name)
        beside = f"   kafka-python {theirs:8.2f}" if theirs else ""
        print(f"{name:28} {value:8.2f} us{beside}")
    if arguments.json:
        print(json.dumps({"benchmark": "wire", "unit": "us", **results}))


if __name__ == "__main__":
    main()
