import numpy as np

from widelimit.engine.tiles import Moments


def test_batches_of_any_size_give_the_moments_of_all_draws():
    rng = np.random.default_rng(0)
    draws = 1e4 + rng.standard_normal((11, 2, 3))
    moments = Moments()
    for begin, end in ((0, 1), (1, 6), (6, 11)):
        moments.add(draws[begin:end].astype(np.float32), None)
    found = moments.kernels()
    assert found.ntk is None
    assert found.ntk_error is None
    single = draws.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(found.nngp, single.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(
        found.nngp_error, single.std(axis=0, ddof=1) / np.sqrt(11), rtol=1e-9
    )


def test_one_draw_has_no_error():
    moments = Moments()
    moments.add(np.ones((1, 2)), None)
    assert moments.kernels().nngp_error is None
