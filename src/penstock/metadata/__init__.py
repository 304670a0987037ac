"""The cluster image, its keys in the metadata store, and every decision that changes it. Pure."""
