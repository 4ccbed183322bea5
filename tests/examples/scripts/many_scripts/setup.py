from setuptools import setup

setup(name="x")
