"""The cluster image, its keys in the metadata store, and all decisions that change it. Pure
code."""
