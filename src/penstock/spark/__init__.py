"""Topics as DataFrames and DataFrames as topics, on Spark's Python data source API."""
