"""torch.compile, once used in a process, disables validation of all distributions; these tests enable it."""

import pytest
from torch.distributions import Distribution


@pytest.fixture(autouse=True)
def validation():
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)
