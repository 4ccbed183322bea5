import pytest


@pytest.fixture
def model():
    return 1
