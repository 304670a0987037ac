"""The consumer: what it reads, where it stands, what it has fetched ahead."""
