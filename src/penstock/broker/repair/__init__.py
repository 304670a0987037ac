"""Damage and failures: how they are found, and how a replica is made whole again."""
