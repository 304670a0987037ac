"""One broker: serves the Kafka protocol from its partition logs."""
