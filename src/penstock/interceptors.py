"""A look at every record on its way: subclass one of these and give it as `interceptors=[...]`."""

from __future__ import annotations

from penstock.client.interceptors import (
    ConsumerInterceptor,
    ProducerInterceptor,
    ProducerRecord,
)

__all__ = ["ConsumerInterceptor", "ProducerInterceptor", "ProducerRecord"]
