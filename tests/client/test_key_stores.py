"""Key stores: the keys of subjects, their rotation and their erasure."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from penstock import serializers
from penstock.client.encryption.envelope import KEY_ID_BYTES_MAX, key_id_of, seal, unseal
from penstock.encryption import (
    Encrypted,
    KeyErased,
    KeyNotFound,
    KeyStore,
    MemoryKeyStore,
    SqlKeyStore,
    SubjectKey,
    encrypted,
)
from penstock.errors import OptionError

ANN = {"customer": "7", "name": "Ann"}


OpenStore = Callable[[Path | str], SqlKeyStore]


@pytest.fixture
def open_store() -> Iterator[OpenStore]:
    with contextlib.ExitStack() as stack:

        def opened(path: Path | str) -> SqlKeyStore:
            database = sqlite3.connect(path, check_same_thread=False)
            stack.enter_context(contextlib.closing(database))
            return SqlKeyStore(database)

        yield opened


@pytest.fixture(params=["memory", "sql"])
def keys(request: pytest.FixtureRequest, open_store: OpenStore) -> KeyStore:
    return MemoryKeyStore() if request.param == "memory" else open_store(":memory:")


def profiles(keys: KeyStore) -> Encrypted[Any, Any]:
    return encrypted(
        serializers.json, keys, topic="profiles", subject=lambda value: str(value["customer"])
    )


def sealed(values: Encrypted[Any, Any], value: Any) -> bytes:
    data = values.serialize(value)
    assert data is not None
    return data


def test_an_erased_subject_cannot_be_read_or_written(keys: KeyStore) -> None:
    values = profiles(keys)
    first = sealed(values, ANN)
    keys.create("7")
    second = sealed(values, ANN)
    other = sealed(values, {"customer": "8"})
    keys.erase("7")
    keys.erase("7")
    for data in (first, second):
        with pytest.raises(KeyErased) as raised:
            values.deserialize(data)
        assert raised.value.key_id == key_id_of(data)
    for refused in (lambda: values.serialize(ANN), lambda: keys.create("7")):
        with pytest.raises(KeyErased):
            refused()
    assert values.deserialize(other) == {"customer": "8"}


def test_a_subject_can_be_erased_before_its_first_value(keys: KeyStore) -> None:
    keys.erase("7")
    with pytest.raises(KeyErased):
        profiles(keys).serialize(ANN)
    with pytest.raises(KeyErased):
        keys.create("7")


def test_rotation_changes_the_key_of_new_values_only(keys: KeyStore) -> None:
    values = profiles(keys)
    old = sealed(values, ANN)
    created = keys.create("7")
    new = sealed(values, ANN)
    assert key_id_of(old) != key_id_of(new) == created.id
    assert values.deserialize(old) == values.deserialize(new) == ANN
    assert keys.current("7") == created


def test_each_subject_has_its_own_key(keys: KeyStore) -> None:
    first, second = keys.current("7"), keys.current("8")
    assert first.secret != second.secret
    assert first.id != second.id
    assert keys.current("7") == first
    assert keys.create("9") == keys.current("9")


def test_a_key_id_says_nothing_about_its_subject() -> None:
    """The id stays in the log after the erasure."""
    one, other = MemoryKeyStore(), MemoryKeyStore()
    assert one.current("ann@example.com").id != other.current("ann@example.com").id


def test_an_unknown_key_is_not_an_erased_one(keys: KeyStore) -> None:
    """A lost key store must not look like an erasure."""
    with pytest.raises(KeyNotFound, match="the key store that the producer uses"):
        keys.get("k-1")
    with pytest.raises(KeyNotFound):
        profiles(MemoryKeyStore()).deserialize(sealed(profiles(keys), ANN))


def test_secrets_are_not_shown() -> None:
    key = SubjectKey("k-1", b"s3cret" + bytes(26))
    assert "s3cret" not in f"{key!r} {key}"


@pytest.mark.parametrize("key_id", ["", "a\n", "é", "k" * (KEY_ID_BYTES_MAX + 1)])
def test_an_id_that_cannot_be_written_is_refused(key_id: str) -> None:
    with pytest.raises(ValueError, match="id of a key"):
        SubjectKey(key_id, bytes(32))


def test_a_key_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes: it must have 32"):
        SubjectKey("k", bytes(16))
    longest = SubjectKey("k" * KEY_ID_BYTES_MAX, bytes(32))
    assert unseal(seal(b"x", longest, b"", bytes), longest, b"") == b"x"


def test_keys_in_a_database_outlive_the_process(tmp_path: Path, open_store: OpenStore) -> None:
    path = tmp_path / "keys.db"
    keys = open_store(path)
    data = sealed(profiles(keys), ANN)
    again = open_store(path)
    assert profiles(again).deserialize(data) == ANN
    again.erase("7")
    with pytest.raises(KeyErased):
        profiles(keys).deserialize(data)


def test_an_erased_key_is_not_left_in_the_file(tmp_path: Path, open_store: OpenStore) -> None:
    path = tmp_path / "keys.db"
    keys = open_store(path)
    secret = keys.current("7").secret.hex().encode()
    assert secret in path.read_bytes()
    keys.erase("7")
    assert secret not in path.read_bytes()


def test_sqlite_is_told_to_overwrite_what_is_erased() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("PRAGMA secure_delete = OFF")
        SqlKeyStore(database)
        assert database.execute("PRAGMA secure_delete").fetchone() == (1,)


def test_a_subclass_of_the_connection_overwrites_too(tmp_path: Path) -> None:
    class Traced(sqlite3.Connection):
        pass

    path = tmp_path / "keys.db"
    with contextlib.closing(sqlite3.connect(path, factory=Traced)) as database:
        database.execute("PRAGMA secure_delete = OFF")
        keys = SqlKeyStore(database)
        assert database.execute("PRAGMA secure_delete").fetchone() == (1,)
        secret = keys.current("7").secret.hex().encode()
        keys.erase("7")
    assert secret not in path.read_bytes()


class Interrupted(sqlite3.Connection):
    """Runs another process's work between two transactions: after the commit with that number."""

    commits = 0
    at: int | None = None

    def commit(self) -> None:
        super().commit()
        self.commits += 1
        if self.commits == self.at:
            self.other_work()

    def other_work(self) -> None:
        raise NotImplementedError


Act = Callable[[SqlKeyStore], Any]


def secrets_of(database: sqlite3.Connection) -> list[str]:
    rows = database.execute("SELECT secret FROM penstock_subject_keys WHERE secret IS NOT NULL")
    return [secret for (secret,) in rows]


@pytest.mark.parametrize("at", range(1, 6))
@pytest.mark.parametrize("act", [lambda keys: keys.create("7"), lambda keys: keys.current("7")])
@pytest.mark.parametrize("known", [True, False])
def test_an_erasure_during_a_creation_leaves_no_key(
    tmp_path: Path, open_store: OpenStore, act: Act, at: int, known: bool
) -> None:
    """Another process erases the subject at any point between the steps of a creation."""
    other = open_store(tmp_path / "keys.db")
    if known:
        other.current("7")
    database = sqlite3.connect(tmp_path / "keys.db", factory=Interrupted)
    with contextlib.closing(database):
        keys = SqlKeyStore(database)
        database.other_work = lambda: other.erase("7")  # type: ignore[method-assign]
        database.commits, database.at = 0, at
        with contextlib.suppress(KeyErased):
            act(keys)
        database.at = None
        if database.commits < at:
            return  # the creation has fewer steps
        assert secrets_of(database) == []
        for (key_id,) in database.execute("SELECT key_id FROM penstock_subject_keys"):
            with pytest.raises(KeyErased):
                other.get(key_id)


@pytest.mark.parametrize("at", range(1, 4))
def test_a_creation_during_an_erasure_leaves_no_key(
    tmp_path: Path, open_store: OpenStore, at: int
) -> None:
    other = open_store(tmp_path / "keys.db")
    other.current("7")
    database = sqlite3.connect(tmp_path / "keys.db", factory=Interrupted)

    def create() -> None:
        with contextlib.suppress(KeyErased):
            other.create("7")

    with contextlib.closing(database):
        keys = SqlKeyStore(database)
        database.other_work = create  # type: ignore[method-assign]
        database.commits, database.at = 0, at
        keys.erase("7")
        assert secrets_of(database) == []
        with pytest.raises(KeyErased):
            keys.current("7")


class Overtaken(sqlite3.Connection):
    """Adds a late key when a transaction with an UPDATE ends, which the UPDATE has not seen.

    PostgreSQL allows this: a statement sees what was committed when it began.
    """

    late = False

    def commit(self) -> None:
        if self.late and self.in_transaction:
            self.late = False
            row = ("late", "7", 1, "ab" * 32)
            self.execute("INSERT INTO penstock_subject_keys VALUES (?, ?, ?, ?)", row)
        super().commit()


def test_a_key_that_an_erasure_did_not_see_is_destroyed() -> None:
    with contextlib.closing(sqlite3.connect(":memory:", factory=Overtaken)) as database:
        keys = SqlKeyStore(database)
        keys.current("7")

        def watch(statement: str) -> None:
            database.late = database.late or statement.startswith("UPDATE")
            if database.late:
                database.set_trace_callback(None)

        database.set_trace_callback(watch)
        keys.erase("7")
        rows = database.execute("SELECT COUNT(*) FROM penstock_subject_keys").fetchone()
        assert rows == (2,)
        assert secrets_of(database) == []


def test_a_key_beside_an_erased_one_cannot_be_used(tmp_path: Path, open_store: OpenStore) -> None:
    """A process that stops between the steps of a creation may leave one. Erasing destroys it."""
    keys = open_store(tmp_path / "keys.db")
    keys.current("7")
    other = keys.current("8")
    keys.erase("7")
    with contextlib.closing(sqlite3.connect(tmp_path / "keys.db")) as database:
        row = ("late", "7", 1, "ab" * 32)
        database.execute("INSERT INTO penstock_subject_keys VALUES (?, ?, ?, ?)", row)
        database.commit()
        with pytest.raises(KeyErased):
            keys.get("late")
        with pytest.raises(KeyErased):
            keys.current("7")
        assert keys.get(other.id) == other
        keys.erase("7")
        assert "ab" * 32 not in secrets_of(database)


def test_erasing_an_unknown_subject_makes_no_key() -> None:
    """The row that marks the erasure never has a secret."""
    statements: list[str] = []
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        keys = SqlKeyStore(database)
        database.set_trace_callback(statements.append)
        keys.erase("7")
    assert [each for each in statements if each.startswith("INSERT") and "NULL" in each]


class Refusing:
    """A connection that behaves as PostgreSQL: after an error, all fails until the rollback."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self.fail_at: str | None = None
        self.lost = False
        self._aborted = False

    def cursor(self) -> Refusing:
        return self

    def execute(self, statement: str, values: Sequence[Any] = ()) -> None:
        if self._aborted:
            raise RuntimeError("current transaction is aborted")
        if self.fail_at is not None and statement.startswith(self.fail_at):
            self._aborted, self.fail_at = True, None
            raise RuntimeError("statement timeout")
        self._found = self._database.execute(statement, values)

    def fetchall(self) -> list[Any]:
        return self._found.fetchall()

    def close(self) -> None:
        pass

    def commit(self) -> None:
        self._database.commit()

    def rollback(self) -> None:
        if self.lost:
            raise RuntimeError("the connection is closed")
        self._aborted = False
        self._database.rollback()


@pytest.mark.parametrize(
    ("statement", "act"),
    [
        ("SELECT", lambda keys: keys.current("7")),
        ("SELECT", lambda keys: keys.get("k-1")),
        ("INSERT", lambda keys: keys.current("8")),
        ("INSERT", lambda keys: keys.create("7")),
        ("UPDATE", lambda keys: keys.erase("8")),
    ],
)
def test_a_store_works_after_an_error_of_the_database(statement: str, act: Act) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        connection = Refusing(database)
        keys = SqlKeyStore(connection)
        found = keys.current("7")
        connection.fail_at = statement
        with pytest.raises(RuntimeError, match="timeout"):
            act(keys)
        assert keys.current("7") == keys.get(found.id) == found


def test_a_table_that_cannot_be_created_leaves_the_connection_usable() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        connection = Refusing(database)
        connection.fail_at = "CREATE"
        with pytest.raises(RuntimeError, match="timeout"):
            SqlKeyStore(connection)
        assert SqlKeyStore(connection).current("7")


def test_the_first_error_is_raised_if_the_connection_is_lost() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        connection = Refusing(database)
        keys = SqlKeyStore(connection)
        connection.fail_at, connection.lost = "SELECT", True
        with pytest.raises(RuntimeError, match="timeout"):
            keys.current("7")


def test_two_processes_get_the_same_first_key(tmp_path: Path, open_store: OpenStore) -> None:
    """The second loses the race for the row, and reads the key of the first."""
    path = tmp_path / "keys.db"
    first, second = (open_store(path) for _ in range(2))
    found = first.current("7")
    second._add("7", 0)
    assert second.current("7") == found


def test_a_table_name_is_checked() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        SqlKeyStore(database, table="main.own_keys").current("7")
        assert database.execute("SELECT COUNT(*) FROM own_keys").fetchone() == (1,)
        with pytest.raises(OptionError, match="not a table name"):
            SqlKeyStore(database, table="keys; DROP TABLE users")


def test_threads_share_a_store(keys: KeyStore) -> None:
    """The clients encrypt on the thread of the caller and on their own."""
    found: list[SubjectKey] = []

    def work() -> None:
        for subject in range(50):
            key = keys.current(str(subject))
            found.append(keys.get(key.id))

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 200
    assert len({key.id for key in found}) == 50
