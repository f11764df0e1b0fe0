"""Duals never broadcast arrays of different ranks by accident."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _strict_ranks():
    with jax.numpy_rank_promotion("raise"):
        yield
