"""What pyproject.toml cannot say: all packages of esper/, its plugins of Hydra, and conf/ beside them as esper.conf."""

from setuptools import find_namespace_packages, find_packages, setup

folders = ["esper.conf", *(f"esper.conf.{name}" for name in find_namespace_packages("conf"))]
plugins = find_namespace_packages(include=["hydra_plugins.*"])
packages = [*find_packages(include=["esper", "esper.*"]), *plugins, *folders]
setup(packages=packages, package_dir={"esper.conf": "conf"})
