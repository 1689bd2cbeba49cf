"""All settings stand in setup.cfg."""

from setuptools import setup

setup()
