"""Examples to try; each runs by itself."""
