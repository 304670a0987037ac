"""SQLite keeps the contract of metadata stores."""

from __future__ import annotations

from .contract import StoreContract


class TestSqlite(StoreContract):
    """Uses the fixture `bench` of this folder."""
