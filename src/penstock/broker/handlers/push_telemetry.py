"""PushTelemetry, version 0: receives a client's metrics (KIP-714).

No client is asked for any (`get_telemetry_subscriptions`), so whatever arrives is checked as in
Kafka and dropped, without being decompressed.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.broker.handlers.get_telemetry_subscriptions import (
    SUBSCRIPTION_ID,
    TELEMETRY_BYTES_MAX,
)
from penstock.metadata.topic_ids import ZERO_ID
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import PushTelemetryRequest, PushTelemetryResponse


def handle(request: PushTelemetryRequest, context: RequestContext) -> PushTelemetryResponse:
    return PushTelemetryResponse(error_code=_code(request))


def _code(request: PushTelemetryRequest) -> ErrorCode:
    if request.client_instance_id == ZERO_ID:
        return ErrorCode.INVALID_REQUEST
    if request.subscription_id != SUBSCRIPTION_ID:
        return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    if len(request.metrics) > TELEMETRY_BYTES_MAX:
        return ErrorCode.TELEMETRY_TOO_LARGE
    return ErrorCode.NONE
