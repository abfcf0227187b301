"""The compiled extensions and their flags; everything else stands in pyproject.toml.

With SANITIZE=1 (see .ci/asan) every access is checked, by Cython and by the compiler's sanitizers.
"""

import os
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

SANITIZE = os.environ.get("SANITIZE") == "1"
FLAGS = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover"] if SANITIZE else ["-O3", "-g1"]
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": SANITIZE,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": SANITIZE,
}

extensions = [
    Extension(path[:-4].replace("/", "."), [path], extra_compile_args=FLAGS, extra_link_args=FLAGS)
    for path in sorted(glob("engine/_native/*.pyx"))
]

setup(ext_modules=cythonize(extensions, compiler_directives=DIRECTIVES, nthreads=2))
