"""Planted bugs, and the search for a seed that finds each of them."""
