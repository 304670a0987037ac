"""A broker survives damaged frames before and during authentication."""

from __future__ import annotations

from broker.fuzzing import run

from . import login_fuzzing


def test_a_broker_survives_damaged_logins() -> None:
    """`login_fuzzing` says what is checked. `make fuzz` sends a million frames."""
    findings = run(login_fuzzing.fuzz(2_000, seed=1))
    assert findings.failures == {}
    assert findings.frames >= 2_000
    assert findings.answered > 200 and findings.refused > 100
    assert findings.logins > 10
