# What other kernels use of `checking`.

from penstock.records.progress cimport Progress

cdef int scan(
    const unsigned char* data,
    Py_ssize_t stop,
    Py_ssize_t count,
    long long base_timestamp,
    long long earliest,
    long long latest,
    long long delta_low,
    int wanted,
    Progress* progress,
) noexcept nogil
