"""Builds the compiled kernels; everything else about the package is in pyproject.toml.

The extension is optional: without a C compiler the same source runs as plain Python, only slower.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

setup(
    ext_modules=cythonize(
        [
            Extension(
                f"penstock.records.{name}",
                [f"src/penstock/records/{name}.py"],
                extra_compile_args=["-O3", "-g0"],
                optional=True,
            )
            for name in (
                "reading",
                "checking",
                "ordinary_batch",
                "gc_tracking",
                "writing",
                "hashing",
            )
        ],
        compiler_directives={
            "language_level": 3,
            # The kernels check every bound themselves, against the end that matters.
            "boundscheck": False,
            "wraparound": False,
            "initializedcheck": False,
            "cdivision": True,
        },
    )
)
