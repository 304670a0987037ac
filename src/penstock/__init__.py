"""Penstock: a distributed message log that speaks the Kafka protocol."""
