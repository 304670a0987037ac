"""Credentials of users that do not exist, so that clients cannot tell them from others.

A broker answers the first message of SCRAM with the user's salt and iterations, and the time of
PLAIN depends on the iterations and the hash. Unknown users get a decoy for this. A decoy is of a
`CredentialClass` that users of the cluster have, and classes with more users have more decoys:
`decoy_classes` counts them.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.security.scram_credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    SALT_BYTES_MAX,
    Credentials,
    ScramCredential,
    ScramMechanism,
)

DECOY_SECRET_BYTES_MIN: Final = 16
"""The shortest secret from which decoys are made."""

CLASSES_MAX: Final = 32
"""How many classes of a mechanism are kept: each costs time at every login."""

PLAIN_ORDER: Final = (ScramMechanism.SHA_512, ScramMechanism.SHA_256)
"""PLAIN checks the first of these that a user has."""


@dataclass(frozen=True, slots=True)
class CredentialClass:
    """Credentials that look alike: the same mechanism, iterations and shape of the salt."""

    mechanism: ScramMechanism
    iterations: int
    salt_bytes: int | None
    """The size of a salt of random bytes; None for the text that Kafka's tools make."""

    weight: int = 1
    """How many users have such a credential. Only the proportions count."""

    plain_weight: int = 0
    """How many users have such a credential that PLAIN checks. It checks one for each user."""

    def __post_init__(self) -> None:
        if not ITERATIONS_MIN <= self.iterations <= ITERATIONS_MAX:
            raise ValueError(
                f"a class of credentials has {self.iterations} iterations: use "
                f"{ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )
        if self.salt_bytes is not None and not 1 <= self.salt_bytes <= SALT_BYTES_MAX:
            raise ValueError(
                f"a class of credentials has a salt of {self.salt_bytes} bytes: use 1 to "
                f"{SALT_BYTES_MAX}"
            )
        if self.weight < 1 or self.plain_weight < 0:
            raise ValueError("a class of credentials needs a weight of 1 or more")


USUAL_CLASSES: Final = tuple(
    CredentialClass(
        mechanism, ITERATIONS_MIN, salt_bytes, plain_weight=int(mechanism is PLAIN_ORDER[0])
    )
    for mechanism in ScramMechanism
    for salt_bytes in (None, SALT_BYTES, 64)
)
"""What the usual tools make: Kafka's, ours and librdkafka's. For a cluster without users."""


def decoy_classes(existing: Credentials) -> tuple[CredentialClass, ...]:
    """Returns the classes of a cluster's credentials, or the usual ones if it has none.

    Call it again when credentials have changed. Each change moves a few unknown users to another
    class, in proportion to the change. The first credential of a mechanism moves most of them.
    """
    counts = Counter[_Kind]()
    plain_counts = Counter[_Kind]()
    for (user, mechanism), credential in existing.items():
        kind = mechanism, credential.iterations, _salt_bytes(credential.salt)
        counts[kind] += 1
        if mechanism is next(each for each in PLAIN_ORDER if (user, each) in existing):
            plain_counts[kind] += 1
    if not counts:
        return USUAL_CLASSES
    made = [CredentialClass(*kind, count, plain_counts[kind]) for kind, count in counts.items()]
    made.sort(key=lambda each: (-each.weight, each.iterations, each.salt_bytes or 0))
    return tuple(
        each for mechanism in ScramMechanism for each in _of(mechanism, made)[:CLASSES_MAX]
    )


_Kind = tuple[ScramMechanism, int, int | None]
"""Mechanism, iterations and `CredentialClass.salt_bytes`."""


@dataclass(frozen=True, slots=True)
class Decoys:
    """Makes a decoy for any name. No password fits it.

    A decoy depends on the secret, the name and the classes. All brokers must have the same secret,
    and it must be stored for good: with another secret all decoys change at once, and the users
    whose salts stay are the ones that exist.

    If the classes change, few decoys do. Those that change get a new salt too, so that they look as
    if someone had set a new password.
    """

    secret: bytes = field(repr=False)
    classes: tuple[CredentialClass, ...] = USUAL_CLASSES
    """From `decoy_classes`. A mechanism without a class gets its usual classes."""

    def __post_init__(self) -> None:
        if len(self.secret) < DECOY_SECRET_BYTES_MIN:
            raise ValueError(
                f"the secret for unknown users has {len(self.secret)} bytes: it needs at least "
                f"{DECOY_SECRET_BYTES_MIN} random bytes, the same on all brokers"
            )
        if not all(isinstance(each, CredentialClass) for each in self.classes):
            raise ValueError("the classes of decoys are not of CredentialClass: use decoy_classes")

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """Returns the decoy for SCRAM."""
        chosen = self._class(mechanism, user)
        kind = f"{chosen.iterations}\0{chosen.salt_bytes}"
        size = mechanism.digest_size
        return ScramCredential(
            mechanism,
            chosen.iterations,
            _salt(self._digest(f"salt\0{kind}", mechanism, user), chosen.salt_bytes),
            self._digest(f"stored key\0{kind}", mechanism, user)[:size],
            self._digest(f"server key\0{kind}", mechanism, user)[:size],
        )

    def plain_credential(self, user: str) -> ScramCredential:
        """Returns the decoy for PLAIN: that of SCRAM, for a mechanism that PLAIN often checks."""
        weights = Counter[ScramMechanism]()
        for each in self.classes:
            weights[each.mechanism] += each.plain_weight
        draws = {
            mechanism: (weight, self._digest("mechanism", mechanism, user))
            for mechanism, weight in weights.items()
            if weight
        }
        chosen = min(draws, key=lambda each: _score(*draws[each]), default=PLAIN_ORDER[0])
        return self.credential(chosen, user)

    def _class(self, mechanism: ScramMechanism, user: str) -> CredentialClass:
        """Draws a class, by rendezvous hashing with weights.

        Each class gets a number that depends only on itself and the name, and the least one wins.
        A class whose weight grows takes names from the others, and no other name moves.
        """

        def score(each: CredentialClass) -> float:
            purpose = f"class\0{each.iterations}\0{each.salt_bytes}"
            return _score(each.weight, self._digest(purpose, mechanism, user))

        classes = _of(mechanism, self.classes) or _of(mechanism, USUAL_CLASSES)
        return min(classes, key=score)

    def _digest(self, purpose: str, mechanism: ScramMechanism, user: str) -> bytes:
        message = f"{purpose}\0{mechanism.sasl_name}\0{user}".encode()
        return hmac.digest(self.secret, message, "sha512")


def _of(
    mechanism: ScramMechanism, classes: Iterable[CredentialClass]
) -> tuple[CredentialClass, ...]:
    return tuple(each for each in classes if each.mechanism is mechanism)


def _score(weight: int, draw: bytes) -> float:
    """Returns a number whose distribution is exponential. The least of several belongs to each of
    them with a probability in proportion to its weight."""
    uniform = (int.from_bytes(draw[:6]) + 0.5) / (1 << 48)
    return -math.log(uniform) / weight


_KAFKA_BITS: Final = 130
_KAFKA_CHARS_MIN: Final = 20
"""A salt of Kafka is shorter once in 2**32 times. Shorter texts are from other tools."""
_KAFKA_CHARS_MAX: Final = 26
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"


def _salt(digest: bytes, salt_bytes: int | None) -> bytes:
    if salt_bytes is not None:
        return hashlib.shake_256(digest).digest(salt_bytes)
    number = int.from_bytes(digest) >> (len(digest) * 8 - _KAFKA_BITS)
    digits = bytearray()
    while number or not digits:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return bytes(digits[::-1])


def _salt_bytes(salt: bytes) -> int | None:
    """Returns the `salt_bytes` of the class of this salt."""
    is_kafka = (
        _KAFKA_CHARS_MIN <= len(salt) <= _KAFKA_CHARS_MAX
        and not salt.translate(None, _DIGITS)
        and not salt.startswith(b"0")
        and int(salt, len(_DIGITS)) < 1 << _KAFKA_BITS
    )
    return None if is_kafka else len(salt)
