"""The credentials of unknown users: a client must not be able to tell them from others."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.decoys import (
    CLASSES_MAX,
    PLAIN_ORDER,
    USUAL_CLASSES,
    CredentialClass,
    Decoys,
    decoy_classes,
)
from penstock.security.scram_credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES_MAX,
    ScramCredential,
    ScramMechanism,
    from_salted_password,
)

SHA_256, SHA_512 = ScramMechanism
SECRET = b"a secret of the cluster"
KAFKA_SALT = b"1a3n6x0c4m5k2jq8t7w9z1abcd"
"""As Kafka's tools make it: a number of 130 bits in base 36."""
KAFKA = CredentialClass(SHA_512, 4096, None, 1, 1)
OURS = CredentialClass(SHA_512, 8192, 32, 1, 1)


def _made(decoys: Decoys, count: int = 1000) -> list[ScramCredential]:
    return [decoys.credential(SHA_512, f"user{each}") for each in range(count)]


def _credential(mechanism: ScramMechanism, iterations: int, salt: bytes) -> ScramCredential:
    return from_salted_password(mechanism, bytes(mechanism.digest_size), salt, iterations)


def test_a_decoy_in_the_style_of_kafka_is_a_number_of_130_bits_in_base_36() -> None:
    salts = [each.salt for each in _made(Decoys(SECRET, (KAFKA,)))]
    assert len({*salts}) == len(salts)
    for salt in salts:
        assert re.fullmatch(rb"[1-9a-z][0-9a-z]*", salt)
        assert int(salt, 36) < 1 << 130
    lengths = Counter(map(len, salts))
    assert 0.3 < lengths[26] / len(salts) < 0.5, "36**25 is 0.6 of 2**130"
    assert lengths[25] + lengths[26] > 0.95 * len(salts)
    assert lengths[24] > 0
    firsts = Counter(salt[:1] for salt in salts if len(salt) == 25)
    assert len(firsts) == 35, "each digit but 0"
    assert max(int(salt, 36) for salt in salts) > (1 << 130) - (1 << 124)


@pytest.mark.parametrize("size", [1, 16, 32, 64, 65, SALT_BYTES_MAX])
def test_other_decoys_have_random_bytes_of_the_size_of_their_class(size: int) -> None:
    salts = [each.salt for each in _made(Decoys(SECRET, (replace(OURS, salt_bytes=size),)), 300)]
    assert {len(each) for each in salts} == {size}
    for at in {0, size // 2, size - 1}:
        assert len({salt[at] for salt in salts}) > 128, "each byte takes all values"


def test_classes_have_decoys_in_proportion_to_their_weights() -> None:
    classes = (replace(KAFKA, weight=6), replace(OURS, weight=3), replace(OURS, salt_bytes=64))
    made = Counter((each.iterations, len(each.salt)) for each in _made(Decoys(SECRET, classes)))
    assert 250 < made[8192, 32] < 350
    assert 70 < made[8192, 64] < 130
    assert made[4096, 32] == made[4096, 64] == 0, "a class is one pair of shape and iterations"


def test_a_decoy_stays_the_same_and_depends_on_secret_user_and_mechanism() -> None:
    made = Decoys(SECRET).credential(SHA_512, "nobody")
    assert made == Decoys(SECRET).credential(SHA_512, "nobody")
    others = [
        Decoys(b"another secret 12").credential(SHA_512, "nobody"),
        Decoys(SECRET).credential(SHA_512, "Nobody"),
        Decoys(SECRET).credential(SHA_256, "nobody"),
    ]
    assert len({each.salt for each in (made, *others)}) == 4


def test_the_order_of_the_classes_does_not_matter() -> None:
    classes = (KAFKA, OURS, replace(OURS, weight=2, salt_bytes=64))
    assert _made(Decoys(SECRET, classes)) == _made(Decoys(SECRET, classes[::-1]))


def test_a_decoy_with_other_iterations_has_another_salt() -> None:
    """A decoy that changes looks as if someone had set a new password."""
    before = _made(Decoys(SECRET, (OURS,)))
    for classes in (
        (OURS, replace(OURS, iterations=4096)),
        (replace(OURS, iterations=4096),),
        (OURS, replace(OURS, salt_bytes=64)),
    ):
        pairs = [*zip(before, _made(Decoys(SECRET, classes)), strict=True)]
        changed = [(old, new) for old, new in pairs if old != new]
        assert changed
        for old, new in changed:
            assert old.salt[:8] != new.salt[:8]
            assert (old.iterations, len(old.salt)) != (new.iterations, len(new.salt))


def test_few_decoys_change_when_the_weights_change_a_little() -> None:
    before = Decoys(SECRET, (replace(KAFKA, weight=50), replace(OURS, weight=50)))
    grown = Decoys(SECRET, (replace(KAFKA, weight=51), replace(OURS, weight=50)))
    new = Decoys(SECRET, (*before.classes, replace(OURS, salt_bytes=64)))
    for after in (grown, new):
        pairs = [*zip(_made(before), _made(after), strict=True)]
        assert sum(old != new for old, new in pairs) < 30
    twice = Decoys(SECRET, tuple(replace(each, weight=100) for each in before.classes))
    assert _made(before) == _made(twice), "only the proportions count"


def test_the_decoy_for_plain_is_the_decoy_for_scram_of_a_mechanism_drawn_by_weight() -> None:
    classes = (
        replace(KAFKA, weight=5, plain_weight=3),
        CredentialClass(SHA_256, 8192, 32, 90, 1),
    )
    decoys = Decoys(SECRET, classes)
    drawn = Counter[ScramMechanism]()
    for user in map(str, range(1000)):
        decoy = decoys.plain_credential(user)
        assert decoy == decoys.credential(decoy.mechanism, user)
        drawn[decoy.mechanism] += 1
    assert 200 < drawn[SHA_256] < 300
    nobody = Decoys(SECRET, tuple(replace(each, plain_weight=0) for each in classes))
    assert nobody.plain_credential("x").mechanism is PLAIN_ORDER[0]


def test_a_mechanism_that_no_user_has_gets_the_usual_decoys() -> None:
    decoys = Decoys(SECRET, (KAFKA,))
    made = [decoys.credential(SHA_256, f"user{each}") for each in range(200)]
    assert {each.iterations for each in made} == {ITERATIONS_MIN}
    assert {len(each.salt) for each in made} >= {25, 26, 32, 64}
    assert {each.mechanism for each in made} == {SHA_256}


def test_the_classes_of_a_cluster_are_counted() -> None:
    random = bytes(range(100, 132))
    existing = {
        ("alice", SHA_256): _credential(SHA_256, 4096, KAFKA_SALT),
        ("alice", SHA_512): _credential(SHA_512, 8192, KAFKA_SALT),
        ("bob", SHA_512): _credential(SHA_512, 8192, KAFKA_SALT[::-1].lstrip(b"0")[:25]),
        ("carol", SHA_512): _credential(SHA_512, 8192, random),
        ("dave", SHA_256): _credential(SHA_256, 4096, KAFKA_SALT),
    }
    assert {*decoy_classes(existing)} == {
        CredentialClass(SHA_256, 4096, None, 2, 1),
        CredentialClass(SHA_512, 8192, None, 2, 2),
        CredentialClass(SHA_512, 8192, 32, 1, 1),
    }
    reversed_order = dict(reversed(existing.items()))
    assert decoy_classes(existing) == decoy_classes(reversed_order)


@pytest.mark.parametrize(
    "salt",
    [
        b"salt",
        b"2p3n6x0c4m5k2jq8t7w9z1abcd",
        b"0a3n6x0c4m5k2jq8t7w9z1abc",
        b"1A3n6x0c4m5k2jq8t7w9z1abcd",
        b"1p3n6x0c4m5k2jq8t7w9z1abcd",
        b"1a3n6x0c4m5k2jq8t7w9z1abcd1",
        b"+a3n6x0c4m5k2jq8t7w9z1abc",
        b"1a3n6x0c4m5k_2jq8t7w9z1ab",
        b"1a3n6x0c4m5k2jq8t7w9z1abc ",
        bytes(25),
        b"\xff" * 26,
    ],
)
def test_a_salt_that_kafka_cannot_have_made_is_of_random_bytes(salt: bytes) -> None:
    (found,) = decoy_classes({("x", SHA_512): _credential(SHA_512, 4096, salt)})[:1]
    assert found == CredentialClass(SHA_512, 4096, len(salt), 1, 1)


def test_a_cluster_without_credentials_has_the_usual_classes() -> None:
    assert decoy_classes({}) == USUAL_CLASSES
    only = decoy_classes({("x", SHA_256): _credential(SHA_256, 4096, KAFKA_SALT)})
    assert only == (CredentialClass(SHA_256, 4096, None, 1, 1),)


def test_only_the_most_frequent_classes_are_kept() -> None:
    existing = {
        (f"{iterations}-{each}", SHA_512): _credential(SHA_512, iterations, bytes(32))
        for iterations in range(5000, 5000 + CLASSES_MAX + 10)
        for each in range(1 + (iterations % 7 == 0))
    }
    found = decoy_classes(existing)
    assert len(found) == CLASSES_MAX
    frequent = {iterations for (_, _), each in existing.items() for iterations in [each.iterations]}
    assert {each.iterations for each in found if each.weight == 2} == {
        iterations for iterations in frequent if iterations % 7 == 0
    }


_KINDS = st.tuples(
    st.sampled_from([*ScramMechanism]),
    st.integers(ITERATIONS_MIN, ITERATIONS_MAX),
    st.none() | st.integers(27, SALT_BYTES_MAX),
)


@given(st.lists(_KINDS, min_size=1, max_size=5), st.text(st.characters(codec="utf-8")))
def test_every_decoy_is_of_a_class_of_the_cluster(
    kinds: list[tuple[ScramMechanism, int, int | None]], user: str
) -> None:
    existing = {
        (str(at), mechanism): _credential(
            mechanism, iterations, KAFKA_SALT if size is None else bytes(size)
        )
        for at, (mechanism, iterations, size) in enumerate(kinds)
    }
    decoy = Decoys(SECRET, decoy_classes(existing)).plain_credential(user)
    kind = decoy.mechanism, decoy.iterations
    sizes = {size for mechanism, iterations, size in kinds if (mechanism, iterations) == kind}
    assert (len(decoy.salt) if len(decoy.salt) > 26 else None) in sizes


def test_what_cannot_be_a_credential_is_no_class() -> None:
    for iterations in (ITERATIONS_MIN - 1, ITERATIONS_MAX + 1, 1000):
        with pytest.raises(ValueError, match="iterations"):
            replace(KAFKA, iterations=iterations)
    with pytest.raises(ValueError, match="use decoy_classes"):
        Decoys(SECRET, cast(Any, (1000,)))
    for size in (0, -1, SALT_BYTES_MAX + 1):
        with pytest.raises(ValueError, match="salt"):
            replace(OURS, salt_bytes=size)
    for weights in ((0, 0), (-1, 0), (1, -1)):
        with pytest.raises(ValueError, match="weight"):
            CredentialClass(SHA_256, 4096, None, *weights)


def test_the_secret_is_long_and_is_not_shown() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        Decoys(b"short")
    assert "a secret" not in repr(Decoys(SECRET))
