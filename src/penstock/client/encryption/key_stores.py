"""Where the keys of subjects are kept.

A subject has one current key, which encrypts, and may have older ones, which only decrypt. Erasing
a subject destroys all of them. The store remembers that the keys existed, and that the subject was
erased: otherwise a late record of that person would get a new key and be readable again.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from threading import Lock
from typing import Any, Final, Literal, Protocol

from penstock.client.encryption.envelope import SECRET_BYTES, KeyErased, KeyNotFound, SubjectKey
from penstock.client.errors import OptionError
from penstock.client.processing.stores import Cursor
from penstock.ports import Random
from penstock.runtime import SystemRandom

_ID_BYTES: Final = 16
"""Random bytes in the id of a key: two keys never have the same."""


class KeyConnection(Protocol):
    """A connection according to the Python database API (PEP 249)."""

    def cursor(self) -> Any: ...

    def commit(self) -> Any: ...

    def rollback(self) -> Any: ...


class KeyStore(Protocol):
    """Keeps the keys of subjects. `MemoryKeyStore` and `SqlKeyStore` are two; write your own for a
    key management service.

    The clients call it for every value, so it should answer from memory or from a local database.
    A store that caches keys must drop them soon after an erasure.

    Example:
        from penstock import encryption

        class Audited:
            def __init__(self, keys: encryption.KeyStore) -> None:
                self.keys = keys
                self.create, self.erase, self.current = keys.create, keys.erase, keys.current

            def get(self, key_id: str) -> encryption.SubjectKey:
                print("a value is decrypted")
                return self.keys.get(key_id)

        keys = Audited(encryption.MemoryKeyStore())
        names = encryption.encrypted(
            serializers.string, keys, topic="customers", subject=lambda _: "customer-7"
        )
        names.deserialize(names.serialize("Ann"))
        #> a value is decrypted
    """

    def current(self, subject: str, /) -> SubjectKey:
        """Returns the key that encrypts new values of the subject. Creates the first one.

        Raises `KeyErased` if the subject was erased.
        """

    def get(self, key_id: str, /) -> SubjectKey:
        """Returns a key by its id. Raises `KeyErased` or `KeyNotFound`."""

    def create(self, subject: str, /) -> SubjectKey:
        """Creates a new current key. Older keys of the subject still decrypt.

        Raises `KeyErased` if the subject was erased: a person who returns is a new subject.
        """

    def erase(self, subject: str, /) -> None:
        """Destroys all keys of the subject. Safe to repeat."""


class MemoryKeyStore:
    """Keeps keys in memory, for tests: all values are unreadable when the process ends.

    Example:
        from penstock import encryption

        keys = encryption.MemoryKeyStore()
        first, second = keys.current("customer-7"), keys.create("customer-7")
        print(keys.current("customer-7") == second, keys.get(first.id) == first)
        #> True True
    """

    def __init__(self, *, random: Random | None = None) -> None:
        self._random = random or SystemRandom()
        self._secrets: dict[str, bytes | None] = {}
        """By key id; None for an erased key."""
        self._subjects: dict[str, list[str]] = {}
        """The ids of a subject's keys, the newest last."""
        self._lock = Lock()

    def current(self, subject: str, /) -> SubjectKey:
        """Returns the newest key of the subject. Creates the first one."""
        with self._lock:
            ids = self._subjects.get(subject)
            return self._found(ids[-1]) if ids else self._add(subject)

    def get(self, key_id: str, /) -> SubjectKey:
        """Returns a key by its id."""
        with self._lock:
            return self._found(key_id)

    def create(self, subject: str, /) -> SubjectKey:
        """Creates a new current key."""
        with self._lock:
            for key_id in self._subjects.get(subject, ()):
                self._found(key_id)
            return self._add(subject)

    def erase(self, subject: str, /) -> None:
        """Drops all keys of the subject."""
        with self._lock:
            ids = self._subjects.setdefault(subject, [])
            if not ids:
                # Nothing was encrypted yet. An erased key makes `current` refuse the subject.
                ids.append(_new_id(self._random))
            for key_id in ids:
                self._secrets[key_id] = None

    def _found(self, key_id: str) -> SubjectKey:
        if key_id not in self._secrets:
            raise KeyNotFound(key_id)
        secret = self._secrets[key_id]
        if secret is None:
            raise KeyErased(key_id)
        return SubjectKey(key_id, secret)

    def _add(self, subject: str) -> SubjectKey:
        key = _new_key(self._random)
        self._secrets[key.id] = key.secret
        self._subjects.setdefault(subject, []).append(key.id)
        return key


class SqlKeyStore:
    """Keeps keys in a table of a database that supports the SQL of SQLite and PostgreSQL.

    Anyone who can read the table can decrypt all values: restrict access to it. Give the store a
    connection of its own, since it commits and rolls back. The clients use it on several threads,
    one at a time: sqlite3 needs `check_same_thread=False`. `placeholder` is how the driver writes a
    parameter: `?` for sqlite3, `%s` for psycopg. The table is created if it does not exist; a name
    that is no table name raises `OptionError`.

    An erased key is overwritten in the table. Backups of the database and its write-ahead log may
    still have it: the erasure is complete when they have expired. A driver of SQLite other than
    sqlite3 must be told to overwrite: execute `PRAGMA secure_delete = ON`.

    An error of the database is raised after a rollback, so that the next call can succeed. If
    `erase` raises one, call it again.

    Example:
        from penstock import encryption

        keys = encryption.SqlKeyStore(sqlite3.connect(":memory:", check_same_thread=False))
        names = encryption.encrypted(
            serializers.string, keys, topic="customers", subject=lambda _: "customer-7"
        )
        print(names.deserialize(names.serialize("Ann")))
        #> Ann
    """

    def __init__(
        self,
        connection: KeyConnection,
        *,
        table: str = "penstock_subject_keys",
        placeholder: Literal["?", "%s"] = "?",
        random: Random | None = None,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", table):
            raise OptionError(f"{table!r} is not a table name: use NAME or SCHEMA.NAME")
        self._connection = connection
        self._lock = Lock()
        self._random = random or SystemRandom()
        mark = placeholder
        # In these statements the table's name was checked above. All values are parameters.
        self._newest = (
            f"SELECT key_id, secret, version FROM {table} "  # noqa: S608 (see above)
            f"WHERE subject = {mark} "
            "ORDER BY CASE WHEN secret IS NULL THEN 0 ELSE 1 END, version DESC LIMIT 1"
        )
        # A row without a secret marks the erasure of its subject. It counts for all keys of the
        # subject: one that another process was creating meanwhile must not be used either.
        self._by_id = (
            "SELECT CASE WHEN EXISTS (SELECT 1 "  # noqa: S608 (see above)
            f"FROM {table} AS erased WHERE erased.subject = own.subject AND erased.secret IS NULL) "
            f"THEN NULL ELSE own.secret END FROM {table} AS own WHERE own.key_id = {mark}"
        )
        self._insert = (
            f"INSERT INTO {table} (key_id, subject, version, secret) "  # noqa: S608 (see above)
            f"VALUES ({mark}, {mark}, {mark}, {mark}) ON CONFLICT (subject, version) DO NOTHING"
        )
        self._forget = f"UPDATE {table} SET secret = NULL WHERE subject = {mark}"  # noqa: S608 (see above)
        with self._transaction() as cursor:
            if isinstance(connection, sqlite3.Connection):
                # SQLite leaves the bytes of an overwritten value in the file otherwise.
                cursor.execute("PRAGMA secure_delete = ON")
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {table} (key_id TEXT NOT NULL UNIQUE, "
                "subject TEXT NOT NULL, version INTEGER NOT NULL, secret TEXT, "
                "PRIMARY KEY (subject, version))"
            )

    def current(self, subject: str, /) -> SubjectKey:
        """Returns the newest key of the subject. Creates the first one."""
        with self._lock:
            return self._current(subject)

    def get(self, key_id: str, /) -> SubjectKey:
        """Returns a key by its id."""
        with self._lock:
            rows = self._select(self._by_id, key_id)
        if not rows:
            raise KeyNotFound(key_id)
        return _key(key_id, rows[0][0])

    def create(self, subject: str, /) -> SubjectKey:
        """Creates a new current key. If another process does so too, both get the same one."""
        with self._lock:
            rows = self._select(self._newest, subject)
            if rows:
                key_id, secret, version = rows[0]
                _key(key_id, secret)
                self._add(subject, version + 1)
            return self._current(subject)

    def erase(self, subject: str, /) -> None:
        """Overwrites all keys of the subject."""
        with self._lock:
            # A subject without keys gets one that is erased, so that it cannot get another later.
            self._change(self._insert, _new_id(self._random), subject, 0, None)
            self._change(self._forget, subject)
            # Another process may have added a key while the first statement ran, and not have seen
            # the erasure. It sees the erasure from now on.
            self._change(self._forget, subject)

    def _current(self, subject: str) -> SubjectKey:
        rows = self._select(self._newest, subject)
        if not rows:
            self._add(subject, 0)
            rows = self._select(self._newest, subject)
        key_id, secret, _ = rows[0]
        return _key(key_id, secret)

    def _add(self, subject: str, version: int) -> None:
        """Adds a key, unless another process has just added this version.

        Destroys it if another process has erased the subject meanwhile.
        """
        key = _new_key(self._random)
        self._change(self._insert, key.id, subject, version, key.secret.hex())
        [(_, secret, _)] = self._select(self._newest, subject)
        if secret is None:
            self._change(self._forget, subject)

    def _select(self, statement: str, value: str) -> list[tuple[Any, ...]]:
        with self._transaction() as cursor:
            cursor.execute(statement, (value,))
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def _change(self, statement: str, *values: object) -> None:
        with self._transaction() as cursor:
            cursor.execute(statement, values)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Cursor]:
        """Commits, also after reading: the next call then sees what other processes have erased.

        Rolls back after an error: PostgreSQL refuses all statements until then.
        """
        try:
            cursor: Cursor = self._connection.cursor()
            yield cursor
            cursor.close()
            self._connection.commit()
        except BaseException:
            # If the connection is lost, this fails too. The first error says why.
            with contextlib.suppress(Exception):
                self._connection.rollback()
            raise


def _new_id(random: Random) -> str:
    return random.bytes(_ID_BYTES).hex()


def _new_key(random: Random) -> SubjectKey:
    return SubjectKey(_new_id(random), random.bytes(SECRET_BYTES))


def _key(key_id: str, secret: str | None) -> SubjectKey:
    if secret is None:
        raise KeyErased(key_id)
    return SubjectKey(key_id, bytes.fromhex(secret))
