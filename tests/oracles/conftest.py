"""What tests of torch modules start from."""

import pytest


@pytest.fixture
def seeded():
    """Torch draws the same weights in every test."""
    import torch

    torch.manual_seed(5)
