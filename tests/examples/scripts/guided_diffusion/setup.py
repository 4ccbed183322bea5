from setuptools import setup
setup(name="improved-diffusion", py_modules=["improved_diffusion"])
