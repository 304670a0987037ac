# How far a scan over the records of a batch is. Uncompiled, an object has these attributes.
cdef struct Progress:
    Py_ssize_t position
    Py_ssize_t number
    int bits
    long long newest
    long long offset_delta
    long long timestamp
