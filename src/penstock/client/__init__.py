"""The clients: connections, cluster metadata, administration, producer and consumer."""
