"""OpenTelemetry spans that follow records through their headers. Requires the extra `[otel]`."""

from __future__ import annotations

from penstock.client.tracing import (
    ConsumerTracing,
    ProducerTracing,
    context_of,
    links_of,
    processing,
)

__all__ = ["ConsumerTracing", "ProducerTracing", "context_of", "links_of", "processing"]
