"""The consumer: subscription and positions, prefetching, and the records that it returns."""
