"""The partition log on disk, in Kafka's file format."""
