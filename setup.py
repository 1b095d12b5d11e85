"""What pyproject.toml cannot say: all packages of esper/, its plugin of Hydra, and conf/ beside them as esper.conf."""

from setuptools import find_namespace_packages, find_packages, setup

folders = ["esper.conf", *(f"esper.conf.{name}" for name in find_namespace_packages("conf"))]
packages = [*find_packages(include=["esper", "esper.*"]), "hydra_plugins.esper_blocks", *folders]
setup(packages=packages, package_dir={"esper.conf": "conf"})
