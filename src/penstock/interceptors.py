"""Base classes for interceptors. Subclass one and pass it to a client as `interceptors=[...]`."""

from __future__ import annotations

from penstock.client.interceptors import (
    ConsumerInterceptor,
    ProducerInterceptor,
    ProducerRecord,
)

__all__ = ["ConsumerInterceptor", "ProducerInterceptor", "ProducerRecord"]
