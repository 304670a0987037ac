"""Kafka's record batch v2: header, records, compression, columns. Pure.

`columnar` is not imported here: it needs pyarrow, which a broker does not use.
"""
