"""Encryption of values in the client. `penstock.encryption` explains it."""
