"""Decides by ACLs whether a principal may perform an operation on a resource.

The order is Kafka's. A super user may do everything. Otherwise any DENY that matches denies, then
any ALLOW that matches allows. If no ACL at all names the resource,
`allow.everyone.if.no.acl.found` decides. Everything else is denied. How specific an ACL is never
matters.

An `Authorizer` does not change: when the ACLs change, the broker builds a new one and swaps it, so
the next request sees the new ACLs and no answer of the old ones survives. It remembers one bit
field of allowed operations for each principal, host and resource, so a repeated check is two
lookups in a dict. All hosts that no ACL names share their answers, so a client with a new address
gets remembered answers. A check that is not remembered takes a number of lookups that depends on
the number of different prefix lengths, not on the number of ACLs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from penstock.security.acls import (
    ALL_BITS,
    ANY_PRINCIPAL,
    SUPPORTED_BITS,
    WILDCARD,
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    allowed_bits,
    check_binding,
    denied_bits,
    normalized_host,
    parse_principal,
)

MEMO_ENTRIES_MAX: Final = 16_384
"""How many answers an `Authorizer` remembers. When it has as many, it forgets them all."""

MEMO_KEY_LENGTH_MAX: Final = 256
"""An answer is not remembered if principal, host and name together have more characters."""

MEMO_BYTES_MAX: Final = 32 * 1024 * 1024
"""What the remembered answers of an `Authorizer` take at most, in bytes.

A character takes at most 4 bytes, so an answer takes less than 1.5 KiB with its key, and all
together less than 24 MiB. Answers for any name and hosts take less than 256 bytes each.
"""

_HOST_LENGTH_MAX: Final = 64
"""The longest text of a client's host that is remembered. Every IP address is shorter."""


def parse_super_users(setting: str) -> frozenset[str]:
    """Returns the principals of Kafka's setting `super.users`, such as `User:a;User:b`.

    Raises `AclRefused` if an entry is not a principal.
    """
    entries = (entry.strip() for entry in setting.split(";"))
    return frozenset(str(parse_principal(entry)) for entry in entries if entry)


class AccessReason(Enum):
    """Why access is allowed or denied."""

    SUPER_USER = "super user"
    DENY_RULE = "an ACL denies it"
    ALLOW_RULE = "an ACL allows it"
    NO_ACL_ALLOWS = "no ACL names the resource, and allow.everyone.if.no.acl.found is true"
    NO_ACL_DENIES = "no ACL names the resource"
    NO_MATCH = "ACLs name the resource, but none allows it"


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """An answer with its reason. `rule` is the ACL that decided, if one did."""

    allowed: bool
    reason: AccessReason
    rule: AclBinding | None = None

    def __str__(self) -> str:
        answer = "allowed" if self.allowed else "denied"
        return f"{answer}: {self.reason.value if self.rule is None else self.rule}"


_DENY: Final = PermissionType.DENY
_LITERAL: Final = PatternType.LITERAL

_Subject = tuple[str, str]
"""A principal and a host as an ACL names them."""


@dataclass(slots=True)
class _Entry:
    """The ACLs with the same resource pattern, principal and host, and what they add up to."""

    allowed: int = 0
    denied: int = 0
    bindings: list[AclBinding] = field(default_factory=list)

    def add(self, binding: AclBinding) -> None:
        self.bindings.append(binding)
        if binding.permission == _DENY:
            self.denied |= denied_bits(binding.operation)
        else:
            self.allowed |= allowed_bits(binding.operation)


_Rules = dict[_Subject, _Entry]
"""The ACLs of one resource pattern."""


class _TypeRules:
    """The ACLs of one resource type."""

    __slots__ = ("literals", "patterns_of", "prefix_lengths", "prefixes", "wildcard")

    def __init__(self, bindings: Iterable[AclBinding]) -> None:
        self.literals: dict[str, _Rules] = {}
        self.prefixes: dict[str, _Rules] = {}
        self.wildcard: _Rules = {}
        self.patterns_of: dict[_Subject, dict[int, list[tuple[bool, str]]]] = {}
        """Subject -> allowed operations -> the literal names (True) and prefixes (False)."""
        for binding in bindings:
            self._add(binding)
        for is_literal, patterns in ((True, self.literals), (False, self.prefixes)):
            for name, rules in patterns.items():
                self._add_patterns(is_literal, name, rules)
        self.prefix_lengths: tuple[int, ...] = tuple(sorted({len(name) for name in self.prefixes}))

    def _add(self, binding: AclBinding) -> None:
        name = binding.resource_name
        subject = (binding.principal, binding.host)
        is_literal = binding.pattern_type == _LITERAL
        if is_literal and name == WILDCARD:
            rules = self.wildcard
        else:
            rules = (self.literals if is_literal else self.prefixes).setdefault(name, {})
        entry = rules.get(subject)
        if entry is None:
            entry = rules[subject] = _Entry()
        entry.add(binding)

    def _add_patterns(self, is_literal: bool, name: str, rules: _Rules) -> None:
        for subject, entry in rules.items():
            if entry.allowed:
                by_operations = self.patterns_of.setdefault(subject, {})
                by_operations.setdefault(entry.allowed, []).append((is_literal, name))

    def patterns_with(
        self, subjects: tuple[_Subject, ...], operation: AclOperation
    ) -> Iterator[tuple[bool, str]]:
        """Yields the patterns with an ALLOW of the operation for one of the subjects."""
        for subject in subjects:
            for allowed, patterns in self.patterns_of.get(subject, {}).items():
                if allowed >> operation & 1:
                    yield from patterns

    def rules_of(self, name: str, is_literal: bool = True) -> Iterator[_Rules]:
        """Yields the ACLs that name a resource, or all resources below a prefix."""
        if self.wildcard:
            yield self.wildcard
        if is_literal and (found := self.literals.get(name)):
            yield found
        size = len(name)
        for length in self.prefix_lengths:
            if length > size:
                return
            if found := self.prefixes.get(name[:length]):
                yield found


_NO_RULES: Final = _TypeRules(())


class Authorizer:
    """Answers whether principals may act, by one set of ACLs.

    Principals are texts such as `User:alice`. Hosts are IP addresses in any spelling. The ACLs and
    super users must be valid, else `AclRefused` is raised. Building takes several microseconds for
    each ACL: use a thread if there are many.
    """

    __slots__ = (
        "_any_memo",
        "_default_bits",
        "_host_memo",
        "_hosts",
        "_memo",
        "_principals",
        "_super_users",
        "_types",
        "acls",
    )

    def __init__(
        self,
        acls: Iterable[AclBinding],
        super_users: frozenset[str] = frozenset(),
        allow_everyone_if_no_acl_found: bool = False,
    ) -> None:
        for principal in super_users:
            parse_principal(principal)
        self.acls = frozenset(acls)
        self._super_users = super_users
        self._default_bits = ALL_BITS if allow_everyone_if_no_acl_found else 0
        by_type: dict[ResourceType, list[AclBinding]] = {}
        for binding in self.acls:
            check_binding(binding)
            by_type.setdefault(binding.resource_type, []).append(binding)
        self._types = {kind: _TypeRules(bindings) for kind, bindings in by_type.items()}
        self._principals = {acl.principal: acl.principal for acl in self.acls}
        """The principals that ACLs name. All others get the same answers from ACLs."""
        self._hosts = {acl.host: acl.host for acl in self.acls if acl.host != WILDCARD}
        """The hosts that ACLs name. All others get the same answers."""
        self._host_memo: dict[str, str] = {}
        """The host of a client -> the host of ACLs that it is, or `*` if no ACL names it."""
        self._memo: dict[tuple[str, str, ResourceType, str], int] = {}
        self._any_memo: dict[tuple[str, str, ResourceType, AclOperation], bool] = {}

    def is_super_user(self, principal: str) -> bool:
        """Returns whether the principal may do everything, whatever the ACLs are."""
        return principal in self._super_users

    def authorize(
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Returns whether the principal may perform the operation on the resource."""
        named_host = self._host_memo.get(host) or self._named_host(host)
        bits = self._memo.get((principal, named_host, resource_type, name))
        if bits is None:
            bits = self._remember(principal, named_host, resource_type, name)
        return bits >> operation & 1 == 1

    def filter(
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Iterable[str],
    ) -> list[str]:
        """Returns the names that `authorize` allows, in their order.

        The answers for many names use at most half of the space for remembered answers.
        """
        memo = self._memo
        rules = self._types.get(resource_type, _NO_RULES)
        named_host = self._host_memo.get(host) or self._named_host(host)
        subjects = _subjects(principal, named_host)
        is_super_user = principal in self._super_users
        allowed = []
        for name in names:
            bits = memo.get((principal, named_host, resource_type, name))
            if bits is None:
                bits = ALL_BITS if is_super_user else self._bits(rules, subjects, name)
                size = len(principal) + len(named_host) + len(name)
                if len(memo) < MEMO_ENTRIES_MAX // 2 and size <= MEMO_KEY_LENGTH_MAX:
                    memo[principal, named_host, resource_type, name] = bits
            if bits >> operation & 1:
                allowed.append(name)
        return allowed

    def authorize_any(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Returns whether the operation is allowed on at least one possible name of this type.

        This is Kafka's authorizeByResourceType. An ALLOW does not count if a DENY covers all of it:
        a DENY of `*`, of the same literal name, or of a prefix that the name or prefix starts with.
        An answer that is not remembered looks at ALLOWs until one counts: at all of them only if
        DENYs cover all.
        """
        if principal in self._super_users:
            return _bit_of(operation) != 0
        named_host = self._host_memo.get(host) or self._named_host(host)
        named_principal = self._principals.get(principal, ANY_PRINCIPAL)
        key = (named_principal, named_host, resource_type, operation)
        allowed = self._any_memo.get(key)
        if allowed is None:
            rules = self._types.get(resource_type, _NO_RULES)
            allowed = self._is_any_allowed(rules, _subjects(named_principal, named_host), operation)
            if len(self._any_memo) >= MEMO_ENTRIES_MAX:
                self._any_memo.clear()
            self._any_memo[key] = allowed
        return allowed

    def operations(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        """Returns the bit field of authorized operations that responses contain.

        As in Kafka it is 0 for the cluster if the principal may not describe it.
        """
        named_host = self._host_memo.get(host) or self._named_host(host)
        bits = self._memo.get((principal, named_host, resource_type, name))
        if bits is None:
            bits = self._remember(principal, named_host, resource_type, name)
        if resource_type == ResourceType.CLUSTER and not bits >> AclOperation.DESCRIBE & 1:
            return 0
        return bits & SUPPORTED_BITS.get(resource_type, 0)

    def decide(
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> AccessDecision:
        """Returns the same answer as `authorize`, with its reason. It is slower.

        If several ACLs decide, the first in the order of their fields is named.
        """
        bit = _bit_of(operation)
        if principal in self._super_users:
            return AccessDecision(bit != 0, AccessReason.SUPER_USER)
        found = list(self._types.get(resource_type, _NO_RULES).rules_of(name))
        subjects = _subjects(principal, self._named_host(host))
        entries = [rules[subject] for rules in found for subject in subjects if subject in rules]
        bindings = sorted(binding for entry in entries for binding in entry.bindings)
        for rule in bindings:
            if rule.permission == PermissionType.DENY and denied_bits(rule.operation) & bit:
                return AccessDecision(False, AccessReason.DENY_RULE, rule)
        for rule in bindings:
            if rule.permission == PermissionType.ALLOW and allowed_bits(rule.operation) & bit:
                return AccessDecision(True, AccessReason.ALLOW_RULE, rule)
        if found:
            return AccessDecision(False, AccessReason.NO_MATCH)
        if self._default_bits & bit:
            return AccessDecision(True, AccessReason.NO_ACL_ALLOWS)
        return AccessDecision(False, AccessReason.NO_ACL_DENIES)

    def _named_host(self, host: str) -> str:
        """Returns the host of ACLs that a client's host is, or `*` if no ACL names it."""
        named_host = WILDCARD
        if self._hosts:
            named_host = self._hosts.get(normalized_host(host), WILDCARD)
        if len(host) <= _HOST_LENGTH_MAX and host.isascii():
            if len(self._host_memo) >= MEMO_ENTRIES_MAX:
                self._host_memo.clear()
            self._host_memo[host] = named_host
        return named_host

    def _remember(
        self, principal: str, named_host: str, resource_type: ResourceType, name: str
    ) -> int:
        """Computes the allowed operations, and remembers them unless the key is too long."""
        if principal in self._super_users:
            bits = ALL_BITS
        else:
            rules = self._types.get(resource_type, _NO_RULES)
            bits = self._bits(rules, _subjects(principal, named_host), name)
        if len(principal) + len(named_host) + len(name) <= MEMO_KEY_LENGTH_MAX:
            if len(self._memo) >= MEMO_ENTRIES_MAX:
                self._memo.clear()
            self._memo[principal, named_host, resource_type, name] = bits
        return bits

    def _bits(
        self,
        type_rules: _TypeRules,
        subjects: tuple[_Subject, ...],
        name: str,
        is_literal: bool = True,
    ) -> int:
        """Returns the allowed operations on a name, or on new names below a prefix."""
        allowed = denied = 0
        has_rules = False
        for rules in type_rules.rules_of(name, is_literal):
            has_rules = True
            for subject in subjects:
                entry = rules.get(subject)
                if entry is not None:
                    allowed |= entry.allowed
                    denied |= entry.denied
        return allowed & ~denied if has_rules else self._default_bits

    def _is_any_allowed(
        self, type_rules: _TypeRules, subjects: tuple[_Subject, ...], operation: AclOperation
    ) -> bool:
        """Returns whether the operation is allowed on at least one name.

        It is enough to look at a name that no pattern but `*` matches, and at each pattern with an
        ALLOW of the operation.
        """
        if self._bits(type_rules, subjects, "", is_literal=False) >> operation & 1:
            return True
        for subject in subjects:
            entry = type_rules.wildcard.get(subject)
            if entry is not None and entry.denied >> operation & 1:
                return False
        return any(
            self._bits(type_rules, subjects, name, is_literal) >> operation & 1
            for is_literal, name in type_rules.patterns_with(subjects, operation)
        )


def _subjects(principal: str, named_host: str) -> tuple[_Subject, ...]:
    """Returns the principals and hosts in ACLs that match a client.

    `named_host` is the host of the client if an ACL names it, else `*`.
    """
    if named_host == WILDCARD:
        return ((principal, WILDCARD), (ANY_PRINCIPAL, WILDCARD))
    return (
        (principal, named_host),
        (principal, WILDCARD),
        (ANY_PRINCIPAL, named_host),
        (ANY_PRINCIPAL, WILDCARD),
    )


def _bit_of(operation: AclOperation) -> int:
    """Returns the bit of a single operation, else 0: nobody may do ALL, ANY or UNKNOWN."""
    return 1 << operation & ALL_BITS
