"""Client quotas: who may use how much, and which clients share one limit.

A quota belongs to an entity: a user, a client id, a user with a client id, or an IP address. A name
of None is the default: it applies to every user, client id or address without a quota of its own.
Each broker applies a quota by itself.

`Quotas` finds the limit of a client by Kafka's eight levels. `alter` and `describe` are what
AlterClientQuotas and DescribeClientQuotas do. `rates` measures how much of a limit is used.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NoReturn
from urllib.parse import quote, unquote

from penstock.security.addresses import canonical, network_of
from penstock.wire.errors import ErrorCode, KafkaError

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
CLIENT_KEYS: Final = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    CONTROLLER_MUTATION_RATE,
)
"""The quotas of users and client ids."""
IP_KEYS: Final = (CONNECTION_CREATION_RATE,)
"""The quotas of IP addresses."""

_WHOLE_NUMBER_MAX: Final = {
    PRODUCER_BYTE_RATE: 2.0**63,
    CONSUMER_BYTE_RATE: 2.0**63,
    CONNECTION_CREATION_RATE: 2.0**31 - 1,
}
_RATE_MAX: Final = 1e15
"""The largest limit of the other quotas. Sums of larger numbers could become infinite."""
_FRACTION_MAX: Final = 1e-6
"""Kafka accepts a whole number that a client has computed with this error."""

ENTITY_NAME_CHARS_MAX: Final = 1024
"""The length of a user name or client id that can have a quota of its own."""
ENTITIES_MAX: Final = 100_000
"""How many entities can have quotas."""
_TEXT_CHARS_MAX: Final = 64
"""How much of a client's text an error message repeats."""

_DEFAULT_TEXT: Final = "<default>"
"""The default in a key of the metadata store. A quoted name has no angle brackets."""
_VERSION: Final = 1

Limits = Mapping[str, float]
"""Quota key -> limit of one entity."""


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """The owner of quotas. `of` and `parse_entity` check that the parts fit together."""

    parts: tuple[tuple[str, str | None], ...]
    """Type and name, in the order of `ENTITY_TYPES`. The name None is the default."""

    @staticmethod
    def of(*parts: tuple[str, str | None]) -> QuotaEntity:
        return parse_entity(parts)

    @property
    def is_ip(self) -> bool:
        return self.parts[0][0] == IP

    def __str__(self) -> str:
        return ", ".join(
            f"default {kind}" if name is None else f"{kind} {name}" for kind, name in self.parts
        )


class Client(NamedTuple):
    """What requests are measured by. A connection keeps one, so that no request has to make it."""

    user: str
    client_id: str | None


class Sharer(NamedTuple):
    """The clients that share one limit. None stands for all: (alice, None) is all of Alice's."""

    user: str | None
    client_id: str | None


@dataclass(frozen=True, slots=True)
class Limit:
    rate: float
    """How much per second."""
    sharer: Sharer
    entity: QuotaEntity
    """The entity whose quota applies."""


def parse_entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Returns the entity, or raises `KafkaError` with INVALID_REQUEST."""
    names: dict[str, str | None] = {}
    for kind, name in parts:
        if kind not in ENTITY_TYPES:
            _refuse(f"the entity type {_shown(kind)} is unknown: use {USER}, {CLIENT_ID} or {IP}")
        if kind in names:
            _refuse(f"the entity names its {kind} twice: name it once")
        names[kind] = None if name is None else _checked_name(kind, name)
    if not names:
        _refuse("the entity is empty: name a user, a client id or an IP address")
    if IP in names and len(names) > 1:
        _refuse("an IP address cannot be combined with a user or client id: use two entities")
    return QuotaEntity(tuple((kind, names[kind]) for kind in ENTITY_TYPES if kind in names))


def _checked_name(kind: str, name: str) -> str:
    if not name:
        _refuse(f"the name of the {kind} is empty: use null for the default")
    if len(name) > ENTITY_NAME_CHARS_MAX:
        _refuse(f"the name of the {kind} has more than {ENTITY_NAME_CHARS_MAX} characters")
    if not name.isascii() and any("\ud800" <= character <= "\udfff" for character in name):
        _refuse(f"the name of the {kind} is not valid Unicode")
    if kind != IP:
        return name
    try:
        return canonical(name)
    except ValueError:
        _refuse(f"{_shown(name)} is not an IP address: host names are not resolved")


def _shown(text: str) -> str:
    shown = text if len(text) <= _TEXT_CHARS_MAX else text[:_TEXT_CHARS_MAX] + "..."
    return ascii(shown)


def _refuse(message: str) -> NoReturn:
    raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def check_limit(entity: QuotaEntity, key: str, value: float) -> float:
    """Returns the limit to store, or raises `KafkaError` with INVALID_REQUEST."""
    keys = IP_KEYS if entity.is_ip else CLIENT_KEYS
    if key not in keys:
        _refuse(f"{_shown(key)} is not a quota of {entity.parts[0][0]}: use {', '.join(keys)}")
    if not math.isfinite(value):
        _refuse(f"{key} is {value}: a quota must be a finite number")
    if value <= 0:
        _refuse(f"{key} is {value}: a quota must be greater than 0. Remove it for no limit")
    most = _WHOLE_NUMBER_MAX.get(key, _RATE_MAX)
    if key in _WHOLE_NUMBER_MAX:
        whole = float(round(value))
        if abs(whole - value) > _FRACTION_MAX or whole == 0:
            _refuse(f"{key} is {value}: this quota must be a whole number")
        value = whole
    if value > most:
        _refuse(f"{key} is {value}: the largest value is {most:.0f}")
    return value


class Quotas:
    """All quotas of the cluster, arranged so that the limit of a client is found quickly.

    It never changes: a broker makes a new one when the quotas in the metadata store change.
    """

    __slots__ = ("_addresses", "_by_key", "entities")

    def __init__(self, entities: Mapping[QuotaEntity, Limits]) -> None:
        self.entities = entities
        self._by_key: dict[str, _Levels] = {}
        self._addresses: dict[str | None, float] = {}
        for entity, limits in entities.items():
            names = dict(entity.parts)
            for key, rate in limits.items():
                if entity.is_ip:
                    self._addresses[names[IP]] = rate
                else:
                    self._by_key.setdefault(key, _Levels()).add(entity, names, rate)

    def has(self, key: str) -> bool:
        """Returns whether any entity has this quota."""
        return bool(self._addresses) if key in IP_KEYS else key in self._by_key

    def limit(self, user: str, client_id: str | None, key: str) -> Limit | None:
        """Returns the limit of the most specific of Kafka's eight levels. None is no limit.

        A client without a client id has the default quota of client ids.
        """
        levels = self._by_key.get(key)
        return None if levels is None else levels.find(user, client_id or "")

    def ip_limit(self, address: str) -> Limit | None:
        """Returns how many connections per second the address may open.

        The sharer has the address in place of a client id, in its one form. The default quota is
        shared by the addresses of an IPv6 network: see `network_of`.
        """
        if not self._addresses:
            return None
        # The path of a socket is no IP address: the default applies.
        with suppress(ValueError):
            address = canonical(address)
        if (rate := self._addresses.get(address)) is not None:
            return Limit(rate, Sharer(None, address), QuotaEntity(((IP, address),)))
        if (rate := self._addresses.get(None)) is not None:
            return Limit(rate, Sharer(None, network_of(address)), QuotaEntity(((IP, None),)))
        return None


@dataclass(slots=True)
class _Levels:
    """The quotas of one key."""

    pairs: dict[tuple[str | None, str | None], tuple[float, QuotaEntity]] = field(
        default_factory=dict
    )
    users: dict[str | None, tuple[float, QuotaEntity]] = field(default_factory=dict)
    clients: dict[str | None, tuple[float, QuotaEntity]] = field(default_factory=dict)

    def add(self, entity: QuotaEntity, names: Mapping[str, str | None], rate: float) -> None:
        if USER not in names:
            self.clients[names[CLIENT_ID]] = (rate, entity)
        elif CLIENT_ID not in names:
            self.users[names[USER]] = (rate, entity)
        else:
            self.pairs[names[USER], names[CLIENT_ID]] = (rate, entity)

    def find(self, user: str, client_id: str) -> Limit | None:
        """Searches the eight levels, the most specific one first."""
        pairs, users = self.pairs, self.users
        pair, one_user = Sharer(user, client_id), Sharer(user, None)
        if found := pairs.get((user, client_id)) or pairs.get((user, None)):
            return Limit(found[0], pair, found[1])
        if found := users.get(user):
            return Limit(found[0], one_user, found[1])
        if found := pairs.get((None, client_id)) or pairs.get((None, None)):
            return Limit(found[0], pair, found[1])
        if found := users.get(None):
            return Limit(found[0], one_user, found[1])
        return self.find_client(client_id)

    def find_client(self, client_id: str) -> Limit | None:
        found = self.clients.get(client_id) or self.clients.get(None)
        return Limit(found[0], Sharer(None, client_id), found[1]) if found else None


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """One entry of AlterClientQuotas, as the client sent it."""

    entity: tuple[tuple[str, str | None], ...]
    operations: tuple[tuple[str, float | None], ...]
    """Quota key and its new limit; None removes the limit."""


@dataclass(frozen=True, slots=True)
class QuotaResult:
    """The answer to one entry."""

    entity: tuple[tuple[str, str | None], ...]
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class AlterOutcome:
    results: tuple[QuotaResult, ...]
    """One per entry, in the order of the request."""
    changes: Mapping[QuotaEntity, Limits]
    """The new limits of each entity that changes; without any, its quotas are removed."""


def alter(
    existing: Mapping[QuotaEntity, Limits],
    entries: Sequence[QuotaAlteration],
    validate_only: bool = False,
) -> AlterOutcome:
    """Decides what AlterClientQuotas changes.

    An entity changes completely or not at all, and apart from the others. If the request names an
    entity more than once, all its entries are refused and it does not change.
    """
    entities: list[QuotaEntity | None] = []
    results: list[QuotaResult] = []
    changes: dict[QuotaEntity, Limits] = {}
    for entry in entries:
        try:
            entity = parse_entity(entry.entity)
        except KafkaError as error:
            entities.append(None)
            results.append(QuotaResult(entry.entity, error.code, error.message))
        else:
            entities.append(entity)
            results.append(QuotaResult(entry.entity))
    counts = Counter(entities)
    room = ENTITIES_MAX - len(existing)
    for index, (entry, found) in enumerate(zip(entries, entities, strict=True)):
        if found is None:
            continue
        try:
            if counts[found] > 1:
                _refuse(f"the request names {_shown(str(found))} more than once: merge the entries")
            before = existing.get(found, {})
            after = _altered(found, before, entry.operations)
            if after and not before:
                if room <= 0:
                    _refuse(f"{ENTITIES_MAX} entities have quotas: remove one first")
                room -= 1
        except KafkaError as error:
            results[index] = QuotaResult(entry.entity, error.code, error.message)
        else:
            if after != before:
                changes[found] = after
    return AlterOutcome(tuple(results), {} if validate_only else changes)


def _altered(
    entity: QuotaEntity, before: Limits, operations: Sequence[tuple[str, float | None]]
) -> Limits:
    after = dict(before)
    seen: set[str] = set()
    for key, value in operations:
        if key in seen:
            _refuse(f"the entry changes {_shown(key)} twice: change it once")
        seen.add(key)
        if value is None:
            after.pop(key, None)
        else:
            after[key] = check_limit(entity, key, value)
    return after


MATCH_EXACT: Final = 0
MATCH_DEFAULT: Final = 1
MATCH_ANY: Final = 2


class QuotaFilter(NamedTuple):
    """One component of DescribeClientQuotas: matches entities that have this type."""

    entity_type: str
    match_type: int
    match: str | None = None
    """The name, for `MATCH_EXACT` only."""


def describe(
    existing: Mapping[QuotaEntity, Limits], filters: Sequence[QuotaFilter], strict: bool = False
) -> list[tuple[QuotaEntity, Limits]]:
    """Returns the entities that match all filters, and their limits.

    With `strict`, an entity may have no other types than those of the filters. Raises `KafkaError`
    if a filter is not valid.
    """
    wanted: dict[str, QuotaFilter] = {}
    for each in filters:
        kind = each.entity_type
        if not kind:
            _refuse(f"the entity type is empty: use {USER}, {CLIENT_ID} or {IP}")
        if kind in wanted:
            _refuse(f"the filter names {_shown(kind)} twice: name it once")
        if kind not in ENTITY_TYPES:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the entity type {_shown(kind)} is unknown: use {USER}, {CLIENT_ID} or {IP}",
            )
        wanted[kind] = _checked_filter(each)
    if IP in wanted and len(wanted) > 1:
        _refuse("an IP address cannot be combined with a user or client id: send two requests")
    found = [
        (entity, limits)
        for entity, limits in existing.items()
        if _matches(entity, wanted) and not (strict and len(entity.parts) != len(wanted))
    ]
    found.sort(key=lambda item: store_name(item[0]))
    return found


def _checked_filter(each: QuotaFilter) -> QuotaFilter:
    if each.match_type not in {MATCH_EXACT, MATCH_DEFAULT, MATCH_ANY}:
        _refuse(f"the match type {each.match_type} is unknown: use 0, 1 or 2")
    if each.match_type != MATCH_EXACT:
        if each.match is not None:
            _refuse(f"match type {each.match_type} takes no name: send null, or match type 0")
        return each
    if each.match is None:
        _refuse("match type 0 needs a name: send one, or match type 1 for the default")
    if each.entity_type != IP:
        return each
    try:
        return each._replace(match=canonical(each.match))
    except ValueError:
        return each  # No quota has this name, so nothing matches.


def _matches(entity: QuotaEntity, wanted: Mapping[str, QuotaFilter]) -> bool:
    names = dict(entity.parts)
    return all(
        kind in names
        # For the default, `match` is None, and so is the name of the entity.
        and (each.match_type == MATCH_ANY or names[kind] == each.match)
        for kind, each in wanted.items()
    )


_FOLDERS: Final = {USER: "users", CLIENT_ID: "clients", IP: "ips"}
_KINDS: Final = {folder: kind for kind, folder in _FOLDERS.items()}


def store_name(entity: QuotaEntity) -> str:
    """Returns the part of a metadata store key that names the entity, such as `users/alice`."""
    return "/".join(
        f"{_FOLDERS[kind]}/{_DEFAULT_TEXT if name is None else quote(name, safe='')}"
        for kind, name in entity.parts
    )


def entity_of(name: str) -> QuotaEntity:
    """Returns the entity that has this `store_name`. Raises `ValueError` if none has."""
    texts = name.split("/")
    parts = [
        (_KINDS.get(folder, folder), None if text == _DEFAULT_TEXT else unquote(text))
        for folder, text in zip(texts[::2], texts[1::2], strict=False)
    ]
    try:
        entity = parse_entity(parts)
    except KafkaError as error:
        raise ValueError(f"{_shown(name)} does not name a quota entity: {error.message}") from None
    if store_name(entity) != name:
        raise ValueError(f"{_shown(name)} does not name a quota entity: it is not quoted correctly")
    return entity


def encode_limits(limits: Limits) -> bytes:
    """Returns the value that the metadata store holds for an entity."""
    fields = {"v": _VERSION, "limits": dict(sorted(limits.items()))}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_limits(entity: QuotaEntity, value: bytes) -> Limits:
    """Returns the limits of an entity. Raises `ValueError` if the value is not valid."""
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the quotas of {entity} are not JSON ({error})") from None
    if not isinstance(fields, dict) or fields.get("v") != _VERSION:
        raise ValueError(f"the quotas of {entity} are not an object of version {_VERSION}")
    limits = fields.get("limits")
    if fields.keys() != {"v", "limits"} or not isinstance(limits, dict):
        raise ValueError(f"the quotas of {entity} have the fields {sorted(fields)}")
    try:
        return {key: check_limit(entity, key, _number(limit)) for key, limit in limits.items()}
    except KafkaError as error:
        raise ValueError(f"the quotas of {entity} are not valid: {error.message}") from None


def _number(value: object) -> float:
    if type(value) is not float and type(value) is not int:
        _refuse(f"{_shown(repr(value))} is not a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf
