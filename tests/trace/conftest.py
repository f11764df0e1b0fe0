"""Traced models of all kinds: most are outside the theorem, which `limit` says in warnings."""

import warnings

import pytest

from widelimit.netsor import PreconditionWarning


@pytest.fixture(autouse=True)
def _outside_the_theorem():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreconditionWarning)
        yield
