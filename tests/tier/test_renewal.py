"""Renewed claims: a process that was fenced does not come back, also within one leader epoch."""

from __future__ import annotations

import pytest

from penstock.tier.chain import find
from penstock.tier.commit import claim, commit_one, new_claim, renew
from penstock.tier.edits import Append
from penstock.tier.errors import Fenced, OutcomeUnknown
from penstock.tier.keys import Claim
from penstock.tier.requests import Create, Request

from .object_samples import OWNER
from .test_commit import CHAIN, Chain


def renewed(chain: Chain, *tried: Claim) -> Claim:
    new = new_claim(1, chain.draw)
    chain.view = chain.run(renew(chain.view, OWNER, new, (*tried, new), 0, chain.draw))
    return new


def test_a_renewed_claim_fences_the_one_before() -> None:
    chain = Chain()
    entry = chain.uploaded(0, 5)
    assert renewed(chain, chain.claim) == chain.section.claim
    with pytest.raises(Fenced, match="has ended: the partition is now claimed by leader epoch 1"):
        chain.run(commit_one(chain.view, Append(OWNER, chain.claim, (entry,)), 0, chain.draw))


def test_a_former_process_of_the_same_leader_epoch_does_not_come_back() -> None:
    """The broker has started again. Its former process was stalled, and still runs."""
    chain = Chain()
    former = chain.claim
    _, now = chain.run(claim(chain.run(find(CHAIN)), OWNER, 1, 0, chain.draw))
    with pytest.raises(
        Fenced, match="cannot be renewed: the partition is now claimed by leader epoch 1"
    ):
        renewed(chain, former)
    assert chain.run(find(CHAIN)).manifest.sections[OWNER].claim == now


def test_a_renewal_that_arrives_late_can_be_renewed_in_turn() -> None:
    chain = Chain()
    late: list[Request] = []

    def no_answer(request: Request) -> object:
        if isinstance(request, Create):
            late.append(request)
            raise OutcomeUnknown("no answer")
        return chain.answer(request)

    unknown = new_claim(1, chain.draw)
    tried = (chain.claim, unknown)
    with pytest.raises(OutcomeUnknown):
        chain.run(renew(chain.view, OWNER, unknown, tried, 0, chain.draw), no_answer)
    chain.bucket.apply(late[0])
    assert chain.run(find(CHAIN)).manifest.sections[OWNER].claim == unknown
    assert renewed(chain, *tried) == chain.section.claim


def test_a_partition_that_the_chain_does_not_know_cannot_be_renewed() -> None:
    chain = Chain()
    chain.view = chain.run(find("shared/1"))
    with pytest.raises(Fenced, match="no leader claims the partition now"):
        renewed(chain, chain.claim)
