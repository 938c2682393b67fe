"""torch.compile, once used in a process, switches the validation of all distributions off: here it is looked at."""

import pytest
from torch.distributions import Distribution


@pytest.fixture(autouse=True)
def validation():
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)
