"""Processing of records: `run`, loops with a delivery guarantee, and offsets in other stores."""
