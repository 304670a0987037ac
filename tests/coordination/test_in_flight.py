"""What the transcripts cannot show: a shard does not remember every request for ever."""

from __future__ import annotations

import pytest

from penstock.coordination.effects import Now, Reply
from penstock.wire.errors import ErrorCode

from .toy_shard import ToyShard

NOW = Now(0, 1_700_000_000_000)


@pytest.mark.parametrize("ends", ["committed", "failed", "unloaded"])
def test_tokens_answered_early_are_forgotten_once_nothing_is_in_flight(ends: str) -> None:
    """Until then a second answer is dropped. Afterwards the token may come again."""
    shard = ToyShard(batch_bytes_max=1_000)
    shard.store({"x": "1"}, "token", NOW, together=True)
    early = Reply("token", "COORDINATOR_NOT_AVAILABLE")
    assert shard.on_append_late(0) == [early]
    assert shard.read("x", "token") == []
    if ends == "committed":
        assert shard.on_committed(0, NOW) == []
    elif ends == "failed":
        assert shard.on_append_failed(0, ErrorCode.NOT_ENOUGH_REPLICAS, NOW) == []
    else:
        assert shard.unload(ErrorCode.NOT_COORDINATOR) == []
    answer = "1" if ends == "committed" else "nothing"
    assert shard.read("x", "token") == [Reply("token", answer)]
