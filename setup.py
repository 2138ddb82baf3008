"""Which files belong to castile: the four packages under castile/ and the data that lies beside their modules."""

from setuptools import find_namespace_packages, setup

setup(
    packages=find_namespace_packages(include=["castile", "castile.*"], exclude=["*__pycache__*", "*.egg-info*"]),
    package_data={"": ["*.toml", "*.npz", "*.md", "*.txt", "py.typed"]},
    include_package_data=False,
)
