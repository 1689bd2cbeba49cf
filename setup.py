"""Settings stand in setup.cfg; here only what it cannot say: ds_configs/ is shipped as the package zerotune.templates."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["zerotune", "zerotune.*"]), "zerotune.templates"],
    package_dir={"zerotune.templates": "ds_configs"},
    package_data={"zerotune": ["ds_config/*.json"], "zerotune.templates": ["*.json"]},
)
