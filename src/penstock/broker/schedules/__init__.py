"""The due times of records on leaders: `bucket_index` keeps them in files, by time."""
