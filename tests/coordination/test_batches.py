"""Records are split into batches that fit the size limit of a partition."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.coordination.batches import split
from penstock.coordination.effects import LogRecord
from penstock.records.record import Record, build_batch


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.builds(LogRecord, st.binary(max_size=300), st.none() | st.binary(max_size=300)),
        max_size=60,
    ),
    st.integers(0, 2_000),
)
def test_batches_contain_all_records_and_fit(records: list[LogRecord], limit: int) -> None:
    """The order is kept. Only a record that fits no batch makes a larger one, alone."""
    batches = list(split(records, limit))
    assert [record for batch in batches for record in batch] == records
    for batch in batches:
        encoded = build_batch(
            [Record(at, 2**62, record.key, record.value) for at, record in enumerate(batch)]
        )
        assert len(encoded) <= limit or len(batch) == 1
