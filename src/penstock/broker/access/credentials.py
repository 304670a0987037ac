"""The SCRAM credentials of the cluster's users, as the logins of this broker need them."""

from __future__ import annotations

import logging

from penstock.broker.access.delegation_tokens import DelegationTokens
from penstock.broker.control.cluster_view import ClusterView
from penstock.metadata.image import Changed
from penstock.security.decoys import PLAIN_ORDER, Decoys, decoy_classes
from penstock.security.scram_credentials import ScramCredential, ScramMechanism

_log = logging.getLogger(__name__)


class UserCredentials:
    """Finds the credential of a user. It follows the metadata store."""

    def __init__(self, cluster: ClusterView, tokens: DelegationTokens) -> None:
        self._cluster = cluster
        self.tokens = tokens
        self._decoys: Decoys | None = None
        self._told: dict[str, str] = {}
        """The problems that were logged."""
        cluster.listen(self._on_change)
        self._tell_problems()

    @property
    def decoys(self) -> Decoys:
        """Makes credentials for users that do not exist. They look like those of the others."""
        if self._decoys is None:
            users = self._cluster.image.users
            if users.decoy_secret is None:
                raise RuntimeError(
                    "the cluster has no secret for unknown users: it is created at start-up"
                )
            self._decoys = Decoys(users.decoy_secret, decoy_classes(users.credentials))
        return self._decoys

    def scram(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return self._cluster.image.users.credentials.get((user, mechanism))

    def plain(self, user: str) -> ScramCredential | None:
        """Returns the credential that PLAIN checks a password against."""
        credentials = self._cluster.image.users.credentials
        for mechanism in PLAIN_ORDER:
            if (found := credentials.get((user, mechanism))) is not None:
                return found
        return None

    def _on_change(self, changed: Changed) -> None:
        if changed.users:
            self._decoys = None
            self._tell_problems()

    def _tell_problems(self) -> None:
        problems = self._cluster.image.users.problems
        for key, problem in problems.items():
            if self._told.get(key) != problem:
                _log.error(
                    "a user cannot log in, because %s in the metadata store is not valid: %s",
                    key,
                    problem,
                )
        self._told = dict(problems)
