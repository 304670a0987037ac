"""Tests the fault script, which decides which request gets which fault."""

from __future__ import annotations

import pytest

from penstock.testing.refusals import can_fail
from penstock.testing.script import Fault, Rule, Script, Verdict, api_of, error_of
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode


def test_a_rule_applies_to_its_api_for_its_number_of_times() -> None:
    script = Script()
    script.add(Rule(Fault.FAIL, ApiKey.PRODUCE, 2, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert script.verdict(ApiKey.FETCH) == Verdict()
    refused = Verdict(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert [script.verdict(ApiKey.PRODUCE) for _ in range(3)] == [refused, refused, Verdict()]


def test_failures_queue_up_and_delays_add_up() -> None:
    """The second failure waits until the first is used up. All delays that
    match a request are added."""
    script = Script()
    script.add(Rule(Fault.FAIL, ApiKey.PRODUCE, 1, ErrorCode.REQUEST_TIMED_OUT))
    script.add(Rule(Fault.FAIL, ApiKey.PRODUCE, 1, ErrorCode.NOT_ENOUGH_REPLICAS))
    script.add(Rule(Fault.DELAY, None, None, 0.5))
    script.add(Rule(Fault.DELAY, ApiKey.PRODUCE, 1, 0.25))
    assert script.verdict(ApiKey.PRODUCE) == Verdict(0.75, ErrorCode.REQUEST_TIMED_OUT)
    assert script.verdict(ApiKey.PRODUCE) == Verdict(0.5, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert script.verdict(ApiKey.PRODUCE) == Verdict(0.5)


def test_silence_and_cuts_last_until_cleared() -> None:
    script = Script()
    script.add(Rule(Fault.SILENCE, None, None))
    script.add(Rule(Fault.CUT, ApiKey.FETCH, None, 7))
    assert script.verdict(ApiKey.FETCH) == Verdict(silent=True, cut_bytes=7)
    assert script.verdict(ApiKey.METADATA) == Verdict(silent=True)
    script.clear()
    assert script.verdict(ApiKey.FETCH) == Verdict()


def test_a_rule_that_applies_zero_times_is_refused() -> None:
    with pytest.raises(ValueError, match="times is 0"):
        Script().add(Rule(Fault.SILENCE, None, 0))


@pytest.mark.parametrize("name", ["OffsetCommit", "offsetcommit", "OFFSET_COMMIT", 8])
def test_apis_are_found_by_name_and_number(name: str | int) -> None:
    assert api_of(name) is ApiKey.OFFSET_COMMIT


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match="did you mean OffsetCommit"):
        api_of("OffsetComit")
    with pytest.raises(ValueError, match="did you mean NOT_LEADER_OR_FOLLOWER"):
        error_of("not_leader_for_follower")


def test_apis_without_an_error_field_cannot_fail() -> None:
    assert can_fail(ApiKey.PRODUCE)
    assert can_fail(ApiKey.HEARTBEAT)
    assert not can_fail(ApiKey.DELETE_ACLS)
