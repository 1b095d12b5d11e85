"""The one thing that pyproject.toml cannot say: all packages of esper/, and conf/ beside them as esper.conf."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["esper", "esper.*"]), "esper.conf"], package_dir={"esper.conf": "conf"})
