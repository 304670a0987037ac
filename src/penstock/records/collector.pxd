# What the kernels use of CPython's garbage collector.
cdef extern from "Python.h":
    void PyObject_GC_UnTrack(object)
