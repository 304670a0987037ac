"""What becomes of an acquired span: the rules for each kind of acknowledgement.

A lock that ends and a session that ends release their spans.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.coordination.effects import Now
from penstock.shares.settings import ShareSettings
from penstock.shares.spans import Span
from penstock.shares.states import AckType, GiveUpReason, RecordState


class Decision(NamedTuple):
    """What happens to a span once it is durable."""

    state: RecordState
    not_before_ms: int = 0
    """In ticks: the span is not delivered again before this time. 0: at once."""
    reason: GiveUpReason = GiveUpReason.NONE


def decide(span: Span, kind: AckType, settings: ShareSettings, now: Now) -> Decision:
    """Returns the decision for an acknowledgement other than RENEW."""
    if kind is AckType.ACCEPT:
        return Decision(RecordState.ACKNOWLEDGED)
    if kind is AckType.GAP:
        return Decision(RecordState.ARCHIVED)
    if kind is AckType.REJECT:
        return give_up(GiveUpReason.REJECTED, settings)
    return release(span, settings, now)


def release(span: Span, settings: ShareSettings, now: Now, *, backoff: bool = True) -> Decision:
    if span.delivery_count >= settings.delivery_limit:
        return give_up(GiveUpReason.DELIVERY_LIMIT, settings)
    wait_ms = settings.backoff_after(span.delivery_count) if backoff else 0
    return Decision(RecordState.AVAILABLE, now.ticks_ms + wait_ms if wait_ms else 0)


def give_up(reason: GiveUpReason, settings: ShareSettings) -> Decision:
    if settings.dead_letters:
        return Decision(RecordState.ARCHIVING, reason=reason)
    return Decision(RecordState.ARCHIVED)
