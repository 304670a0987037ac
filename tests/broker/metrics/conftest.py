"""Limits of metrics and health that are short for operators, and too short on a busy machine."""

from __future__ import annotations

import pytest

from penstock.broker.metrics import group_lag, health
from penstock.testing.slowness import patient


@pytest.fixture(autouse=True)
def patient_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A health check may take longer than two seconds, and the end offsets of other brokers longer
    than a quarter of a second.
    """
    monkeypatch.setattr(health, "PATIENCE_S", patient(60.0))
    monkeypatch.setattr(group_lag, "ANSWER_S", patient(60.0))
