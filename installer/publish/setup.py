"""The part of the build that pyproject.toml cannot express: one version for both distributions."""

import runpy
from pathlib import Path

from setuptools import setup

VERSION = runpy.run_path(str(Path(__file__).parents[1] / "tsuku_llm/_version.py"))["__version__"]

setup(
    version=VERSION,
    # Not here: modules in a folder below installer/ would count as source.
    options={"build": {"build_base": str(Path(__file__).parents[2] / "build/publish")}},
    install_requires=[
        # The publisher uses the client's modules, which promise nothing to other versions.
        f"tsuku-llm=={VERSION}",
        "backports-zstd>=1; python_version < '3.14'",  # reads compressed HIP code, as 3.14 does
        "lief>=1",  # measures what a build needs
        "pyyaml>=6",  # reads upstream's workflows
        "sigstore>=4",  # verifies who built it
    ],
)
