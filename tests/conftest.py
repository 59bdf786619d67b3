"""Shared by every test: a seeded generator and the hypothesis profile."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import config

settings.register_profile("keyhole", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("keyhole")


@pytest.fixture
def rng():
    return np.random.default_rng(20260101)


@pytest.fixture
def untyped():
    """Shape annotations are not enforced, as outside a test run: what is refused is refused by the code itself."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
