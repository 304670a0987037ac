"""What a new leader does with a stored state: where it begins, and which records are lost."""

from __future__ import annotations

import pytest

from penstock.shares.image import ShareImage, StoredSpan
from penstock.shares.loading import LogEnd, cut_lost, has_start, start_delta
from penstock.shares.states import RecordState

DONE = RecordState.ACKNOWLEDGED


def image_of(start: int, end: int, epoch: int) -> ShareImage:
    """A window whose last record is done, and whose first one is not."""
    return ShareImage(1, start, end, epoch, [StoredSpan(end - 1, end - 1, DONE, 1)])


def test_nothing_is_cut_if_the_log_has_everything() -> None:
    image = image_of(10, 20, 3)
    assert not cut_lost(image, LogEnd(3, 20, 20))
    assert not cut_lost(image, LogEnd(3, 25, 40))
    assert image == image_of(10, 20, 3)


def test_states_of_lost_records_are_cut() -> None:
    image = image_of(10, 20, 3)
    assert cut_lost(image, LogEnd(3, 15, 40))
    assert (image.start_offset, image.end_offset, image.spans) == (10, 15, [])
    assert not cut_lost(image, LogEnd(3, 15, 40))


def test_a_start_beyond_the_log_moves_back() -> None:
    image = image_of(18, 20, 3)
    assert cut_lost(image, LogEnd(3, 15, 15))
    assert (image.start_offset, image.end_offset) == (15, 15)


def test_without_the_stored_epoch_the_whole_window_is_delivered_again() -> None:
    """The log has other records of an earlier epoch at the same offsets."""
    image = image_of(10, 20, 5)
    assert cut_lost(image, LogEnd(3, 30, 40))
    assert (image.start_offset, image.end_offset, image.spans) == (10, 10, [])
    assert not cut_lost(image, LogEnd(3, 30, 40))


@pytest.mark.parametrize(("log_end", "is_cut"), [(20, False), (15, True)])
def test_without_an_epoch_the_end_of_the_log_decides(log_end: int, is_cut: bool) -> None:
    image = image_of(10, 20, -1)
    assert cut_lost(image, LogEnd(-1, -1, log_end)) is is_cut
    assert image.end_offset == min(20, log_end)


def test_a_start_is_decided_once() -> None:
    image = ShareImage.starting_at(-1, state_epoch=4)
    assert not has_start(image)
    image.apply(start_delta(image, 100, 2))
    assert has_start(image)
    assert (image.start_offset, image.end_offset, image.end_leader_epoch) == (100, 100, 2)


def test_a_start_at_the_first_offset_has_no_epoch() -> None:
    image = ShareImage.starting_at(-1)
    image.apply(start_delta(image, 0, -1))
    assert (image.start_offset, image.end_offset) == (0, 0)
