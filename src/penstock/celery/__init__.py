"""Celery and kombu on Penstock: `broker_url = "penstock://localhost:9092"`. See docs/CELERY.md.

Kombu has no entry points for transports. But it loads serializers by entry point whenever
`kombu.serialization` is imported, which Celery always does. So Penstock registers a serializer
entry point, and loading it registers the transport. The serializer itself has no encoder and no
decoder: only its name and content type are known to kombu, and nothing uses them.

Programs that use kombu without Celery can import this package instead.
"""

from __future__ import annotations

from typing import Final

from kombu.transport import TRANSPORT_ALIASES

SERIALIZER: Final = (None, None, "application/vnd.penstock.transport")
"""The arguments that kombu passes to its register of serializers."""

TRANSPORT_ALIASES.setdefault("penstock", "penstock.celery.transport:Transport")
