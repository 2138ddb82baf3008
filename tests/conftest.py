"""What all tests share: hypothesis profiles, and a reason for every test that needs a GPU where there is none."""

import os

import hypothesis
import pytest

hypothesis.settings.register_profile("castile", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.register_profile("wide", deadline=None, print_blob=True, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "castile"))


def has_gpu() -> bool:
    """Whether CuPy is installed and sees a device."""
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount() > 0
    except Exception:
        return False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if wanting and not has_gpu():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="needs a GPU that CuPy sees"))
