"""GetTelemetrySubscriptions, version 0: tells a client which metrics to push (KIP-714): none.

Clients therefore push nothing, and ask again after the interval. A client without an instance id
gets one.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.context import RequestContext
from penstock.metadata.topic_ids import ZERO_ID, new_id
from penstock.records.batch import Codec
from penstock.wire.messages import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)

PUSH_INTERVAL_MS: Final = 300_000
TELEMETRY_BYTES_MAX: Final = 1 << 20
SUBSCRIPTION_ID: Final = 1
"""There is one subscription. It is empty, and the same for all clients."""
_COMPRESSIONS: Final = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)


def handle(
    request: GetTelemetrySubscriptionsRequest, context: RequestContext
) -> GetTelemetrySubscriptionsResponse:
    known = request.client_instance_id
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=new_id(context.services.env.random.bytes) if known == ZERO_ID else known,
        subscription_id=SUBSCRIPTION_ID,
        accepted_compression_types=[int(codec) for codec in _COMPRESSIONS],
        push_interval_ms=PUSH_INTERVAL_MS,
        telemetry_max_bytes=TELEMETRY_BYTES_MAX,
        delta_temporality=True,
        requested_metrics=[],
    )
