"""The compiled extensions and their flags; everything else stands in pyproject.toml."""

from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
}

extensions = [
    Extension(path[:-4].replace("/", "."), [path], extra_compile_args=["-O3", "-g1"])
    for path in sorted(glob("engine/_native/*.pyx"))
]

setup(ext_modules=cythonize(extensions, compiler_directives=DIRECTIVES, nthreads=2) if extensions else [])
