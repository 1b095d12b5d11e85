"""The one thing that pyproject.toml cannot say: all packages of esper/, and conf/ beside them as esper.conf."""

from setuptools import find_namespace_packages, find_packages, setup

folders = ["esper.conf", *(f"esper.conf.{name}" for name in find_namespace_packages("conf"))]
setup(packages=[*find_packages(include=["esper", "esper.*"]), *folders], package_dir={"esper.conf": "conf"})
