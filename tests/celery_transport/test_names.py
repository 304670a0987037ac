"""Every queue has a topic of its own, with a legal name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.celery.names import Names, legal_name
from penstock.topic_partition import TopicPartition


def test_a_legal_name_is_the_name_of_the_topic() -> None:
    assert Names().queue_topic("celery") == "celery"
    assert Names("/").queue_topic("mail.high-1_x") == "mail.high-1_x"


def test_other_names_are_escaped() -> None:
    assert legal_name("media/video") == "esc-media_2fvideo"
    assert legal_name("größe") == "esc-gr_c3_b6_c3_9fe"
    assert legal_name("..") == "esc-.."
    assert legal_name("") == "esc-"


def test_names_that_others_use_are_escaped() -> None:
    """Topics of brokers, those of this transport, and names that look escaped."""
    assert legal_name("__share_group_state") == "esc-_5f_5fshare_5fgroup_5fstate"
    assert legal_name("penstock.celery.bindings") == "esc-penstock.celery.bindings"
    assert legal_name("esc-media_2fvideo") == "esc-esc-media_5f2fvideo"


def test_a_virtual_host_is_a_prefix() -> None:
    names = Names("/billing")
    assert names.queue_topic("celery") == "billing.celery"
    assert names.bindings_topic == "billing.penstock.celery.bindings"
    assert names.log_topic("celeryev") == "billing.penstock.celery.exchange.celeryev"
    assert Names().log_topic("") == "penstock.celery.default-exchange"


@given(st.text(max_size=300), st.text(max_size=300))
def test_two_queues_never_share_a_topic(one: str, other: str) -> None:
    TopicPartition(legal_name(one), 0)
    assert len(legal_name(one)) <= 200
    assert (legal_name(one) == legal_name(other)) == (one == other)


@given(st.text("aé/_", min_size=190, max_size=260), st.text("aé/_", min_size=190, max_size=260))
def test_two_long_names_never_share_a_topic(one: str, other: str) -> None:
    assert (legal_name(one) == legal_name(other)) == (one == other)
