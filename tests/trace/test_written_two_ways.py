"""One model, written in two ways, has one law: weights that are shared, cut, and scaled."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widelimit.errors import WidelimitError
from widelimit.trace import RefusedError, trace

X = np.random.default_rng(0).standard_normal((2, 3))
TOKENS = np.random.default_rng(1).standard_normal((2, 4, 3))


def normal(key, *shape):
    return jax.random.normal(key, shape) / shape[-1] ** 0.5


def kernel(model, x=X):
    """`model(n, keys)` is a function of one example."""
    return trace(lambda n, key: model(n, jax.random.split(key, 6)), x).limit().covariance().value


def assert_same(one, two, x=X, factor=1.0):
    np.testing.assert_allclose(kernel(one, x), factor * kernel(two, x), rtol=1e-6, atol=1e-9)


def features(n, keys):
    return normal(keys[0], 3, n) * n**0.5, normal(keys[1], n)


def plain(n, keys):
    embed, readout = features(n, keys)
    return lambda x: readout @ jnp.tanh(x @ embed)


def a_readout_of_all_channels_and_of_half_of_them():
    def model(n, keys):
        embed, readout = features(n, keys)

        def run(x):
            h = jnp.tanh(x @ embed)
            return readout @ h + readout[: n // 2] @ h[: n // 2]

        return run

    assert_same(model, plain, factor=2.5)  # (2² + 1)/2


def halves_that_overlap_in_a_quarter(stride):
    def model(n, keys):
        embed, readout = features(n, keys)
        other = slice(0, n // 2) if stride == 1 else slice(0, n, 2)

        def run(x):
            h = jnp.tanh(x @ embed)
            return readout[n // 4 : 3 * n // 4] @ h[n // 4 : 3 * n // 4] + readout[other] @ h[other]

        return run

    assert_same(model, plain, factor=1.5)


def channels_side_by_side_with_themselves():
    def model(n, keys):
        embed, readout = features(n, keys)

        def run(x):
            h = jnp.tanh(x @ embed)
            return jnp.concatenate([readout, readout]) @ jnp.concatenate([h, h])

        return run

    assert_same(model, plain, factor=4.0)


def halves_that_change_places():
    def model(n, keys):
        embed, readout = features(n, keys)

        def turned(v):
            return jnp.concatenate([v[n // 2 :], v[: n // 2]])

        def run(x):
            h = jnp.tanh(x @ embed)
            return readout @ h + turned(readout) @ turned(h)

        return run

    assert_same(model, plain, factor=4.0)


def scores_of_channels_side_by_side_with_themselves():
    def model(copies):
        def make(n, keys):
            embed, readout = features(n, keys)
            gate = normal(keys[2], n)

            def run(x):
                h = jnp.tanh(x @ embed)
                sides = (jnp.concatenate([v] * copies) for v in (gate, h))
                score = jnp.dot(*sides) / copies
                return readout @ h * jnp.tanh(2 * score)

            return run

        traced = trace(lambda n, key: make(n, jax.random.split(key, 6)), X[:1])
        return traced.limit(draws=1024).covariance()

    one, two = model(1), model(2)
    assert (np.abs(one.value - two.value) < 5 * np.hypot(one.error, two.error)).all()


def one_readout_of_independent_features_with_a_mean():
    def model(apart):
        def make(n, keys):
            embed, readout = features(n, keys)
            other = normal(keys[2], 3, n) * n**0.5

            def run(x):
                one, two = jax.nn.relu(x @ embed), jax.nn.relu(x @ other)
                return readout @ one + readout @ two if apart else readout @ (one + two)

            return run

        return make

    assert_same(model(True), model(False))


def keys_that_are_equal_draw_equal_weights():
    def model(n, keys):
        equal = [jax.random.split(keys[0], m)[1] for m in (2, 3)] + [jax.random.fold_in(keys[0], 1)]
        embed = sum(jax.random.normal(k, (3, n)) for k in equal)
        readout = normal(keys[1], n)
        return lambda x: readout @ (x @ embed)

    def thrice(n, keys):
        embed, readout = features(n, keys)
        return lambda x: readout @ (3 * x @ embed)

    assert_same(model, thrice)


def test_weights_that_are_drawn_again_from_their_key():
    """The usual way to another initialiser; the first draw is nowhere used."""

    def model(n, keys):
        embed, readout = features(n, keys)
        first = jax.random.uniform(keys[0], (3, n))
        first = embed
        return lambda x: readout @ jnp.tanh(x @ first)

    assert_same(model, plain)


def test_one_position_rolls_onto_itself():
    def model(n, keys):
        embed, readout = features(n, keys)
        return lambda x: readout @ jnp.roll(jnp.tanh(x @ embed)[None], 1, axis=0)[0]

    assert_same(model, plain)


def test_tiles():
    """Repeated positions and channels, and outputs that are repeated."""

    def model(n, keys):
        embed, readout = features(n, keys)

        def run(x):
            h = jnp.tile(jnp.tanh(x @ embed)[None], (3, 2))
            return jnp.tile(jnp.tile(readout, 2) @ h[2], 2)

        return run

    np.testing.assert_allclose(kernel(model)[..., 0, 1], 4 * kernel(plain), rtol=1e-6)


def small_arguments_pass_functions_as_they_are(function):
    def model(n, keys, function=function):
        embed, readout = features(n, keys)
        other = normal(keys[2], 3, n)
        return lambda x: readout @ (jnp.tanh(x @ embed) + n**0.5 * function(x @ other))

    assert_same(model, lambda n, keys: model(n, keys, lambda z: z))


def powers_and_angles_of_small_arguments():
    def model(scale):
        def make(n, keys):
            embed, readout = features(n, keys)
            other = normal(keys[2], 3, n) * n**0.5

            def run(x):
                y, z = scale(n) * (x @ embed), scale(n) * (x @ other)
                return readout @ (jnp.arctan2(y, z) + jnp.abs(z) ** 1.5 / scale(n) ** 1.5)

            return run

        return make

    found, expected = (kernel(model(s)) for s in (lambda n: n**-0.5, lambda n: 1.0))
    np.testing.assert_allclose(found, expected, rtol=0.02)


def two_filters_for_each_channel():
    def model(merged):
        def make(n, keys):
            embed = jax.random.normal(keys[0], (n, 3, 1))
            filters = jax.random.normal(keys[2], (2 * n, 1, 3))
            readout = normal(keys[1], n)

            def depthwise(h, kernel):
                return jax.lax.conv_general_dilated(h, kernel, (1,), "SAME", feature_group_count=n)

            def run(x):
                h = jnp.tanh(jax.lax.conv_general_dilated(x.T[None], embed, (1,), "SAME"))
                if merged:
                    one, two = jnp.moveaxis(depthwise(h, filters).reshape(n, 2, -1), 1, 0)
                else:
                    one, two = (depthwise(h, filters[k::2])[0] for k in (0, 1))
                return readout @ (one + two)[:, 0]

            return run

        return make

    assert_same(model(True), model(False), TOKENS[:1, :1])


def a_matrix_of_activations_with_parts_of_two_orders():
    def model(both):
        def make(n, keys):
            embed, readout = features(n, keys)
            weights, values = normal(keys[2], n, n), normal(keys[3], n, n)

            def run(x):
                h = x @ embed
                matrix = h.T @ (h @ values)
                if both:  # smaller by √n: queries and these keys are independent
                    matrix = (h @ weights).T @ (h @ values) + matrix
                return h[0] @ matrix / n @ readout

            return run

        return make

    assert_same(model(True), model(False), TOKENS)


# ---- refusals ----------------------------------------------------------------------------------


def shared_gate(n, keys):
    embed, readout = features(n, keys)
    h, g = (lambda x, c=c: jnp.tanh(c * x @ embed) for c in (1, 2))
    return lambda x: readout @ g(x) * jnp.exp(readout @ h(x))


def one_key_two_shapes(n, keys):
    embed = jax.random.normal(keys[0], (3, n))
    bias, readout = jax.random.normal(keys[1], (n,)), normal(keys[1], 1, n)
    return lambda x: readout @ jnp.tanh(x @ embed + bias)


def one_key_two_laws(n, keys):
    embed, readout = features(n, keys)
    other = jax.random.uniform(keys[0], (3, n), minval=-1.0)
    return lambda x: readout @ jnp.tanh(x @ embed + x @ other)


def bounds_that_differ(n, keys):
    bound = jnp.array([0.1, 1.0, 3.0])[:, None]
    embed = jax.random.uniform(keys[0], (3, n), minval=-bound, maxval=bound)
    readout = normal(keys[1], n)
    return lambda x: readout @ jnp.tanh(x @ embed)


def bounds_that_are_drawn(n, keys):
    bound = jnp.abs(jax.random.normal(keys[2], (n,)))
    embed = jax.random.uniform(keys[0], (3, n), minval=-bound, maxval=bound)
    readout = normal(keys[1], n)
    return lambda x: readout @ jnp.tanh(x @ embed)


def groups_of_two_channels(n, keys):
    embed, readout = features(n, keys)
    filters = jax.random.normal(keys[2], (n, 2, 1))

    def run(x):
        h = jnp.tanh(x @ embed)[None, :, None]
        h = jax.lax.conv_general_dilated(h, filters, (1,), "SAME", feature_group_count=n // 2)
        return readout @ h[0, :, 0]

    return run


def centred_by_coincidence(n, keys):
    embed, readout = features(n, keys)
    weights = normal(keys[2], n, n)

    def run(x):
        x = x / jnp.linalg.norm(x)
        one, two = (y @ embed @ weights for y in (x, jnp.roll(x, 1)))
        return readout @ (jnp.tanh(x @ embed) * jnp.sum(one**2 - two**2) / n**0.5)

    return run


def steps_of_something_small(n, keys):
    embed, readout = features(n, keys)
    return lambda x: readout @ (jnp.floor(x @ embed / n) + x @ embed)


def refused(model, rule):
    with pytest.raises(RefusedError, match=rule):
        kernel(model)


def test_sums_that_are_centred_by_some_of_the_weights_are_read():
    """Gates of one fused matrix, on whole weights or on their halves."""

    def model(n, keys, cut):
        embed, readout = features(n, keys)
        weights = normal(keys[2], n, 2 * n)

        def run(x):
            h = jnp.tanh(x @ embed)
            if cut:
                one, two = jnp.einsum("i,ikj->kj", h, weights.reshape(n, 2, n))
            else:
                one, two = jnp.split(h @ weights, 2)
            return readout @ h * jnp.tanh(jnp.sum(one * jax.nn.sigmoid(two)) / n**0.5)

        return run

    for cut in (False, True):
        traced = trace(lambda n, key, c=cut: model(n, jax.random.split(key, 6), c), X)
        assert traced.limit(draws=8).random


# ---- functions that are hard to integrate --------------------------------------------------------


def fast_waves_have_their_closed_form():
    """`E[sin u sin v] = (e^{−Var(u−v)/2} − e^{−Var(u+v)/2})/2`: 100 rad per standard unit."""
    x = np.array([[1.0, 0.0, 0.0], [1.0, 0.01, 0.0]])

    def model(n, keys):
        embed, readout = features(n, keys)
        return lambda x: readout @ jnp.sin(100 * x @ embed)

    law = trace(lambda n, key: model(n, jax.random.split(key, 6)), x).limit()
    found = law.covariance()
    assert found.value[0, 1] == pytest.approx(np.exp(-0.5) / 2, abs=5 * found.error[0, 1] + 1e-3)
    assert found.error.max() < 0.01


def test_a_choice_between_numbers_and_what_is_none():
    """`E[b²]E[log² a; a > 1]`, in which log a is no number for negative a."""

    def model(n, keys):
        embed, readout = features(n, keys)
        other = normal(keys[2], 3, n) * n**0.5

        def run(x):
            a, b = x @ embed, x @ other
            return readout @ jnp.where(a > 1, b * jnp.log(a), 0.3 * b)

        return run

    traced = trace(lambda n, key: model(n, jax.random.split(key, 6)), np.eye(1, 3))
    found = traced.limit().covariance()
    a = np.random.default_rng(0).standard_normal(1 << 20)
    expected = np.where(a > 1, np.log(np.maximum(a, 1)), 0.3) ** 2
    assert found.value[0, 0] == pytest.approx(expected.mean(), rel=0.02)


def test_averages_that_are_no_numbers_are_refused():
    def model(n, keys):
        embed, readout = features(n, keys)
        return lambda x: readout @ jnp.log(x @ embed)

    with pytest.raises(RefusedError, match="are numbers"):
        kernel(model)


@pytest.mark.parametrize("law", ["exponentials", "cauchy"])
def test_functions_without_a_square_mean_are_refused(law):
    def model(n, keys):
        embed, readout = features(n, keys)
        if law == "cauchy":
            embed = jax.random.cauchy(keys[2], (3, n))
        return lambda x: readout @ (x @ embed if law == "cauchy" else jnp.sinh(9 * x @ embed))

    with pytest.raises(WidelimitError, match="no square mean"):
        kernel(model)


# ---- the kinds of wrong limits that random models once found -------------------------------------

KINDS = {
    "a readout of all channels and of half of them": a_readout_of_all_channels_and_of_half_of_them,
    "halves that overlap": partial(halves_that_overlap_in_a_quarter, 1),
    "halves and every second channel": partial(halves_that_overlap_in_a_quarter, 2),
    "channels beside themselves": channels_side_by_side_with_themselves,
    "halves that change places": halves_that_change_places,
    "scores of channels beside themselves": scores_of_channels_side_by_side_with_themselves,
    "one readout of independent features": one_readout_of_independent_features_with_a_mean,
    "equal keys": keys_that_are_equal_draw_equal_weights,
    "small arguments of tanh": partial(small_arguments_pass_functions_as_they_are, jnp.tanh),
    "small arguments of clip": partial(
        small_arguments_pass_functions_as_they_are, lambda z: jnp.clip(z, -1, 1)
    ),
    "small arguments of erf": partial(
        small_arguments_pass_functions_as_they_are,
        lambda z: jax.scipy.special.erf(z) * np.pi**0.5 / 2,
    ),
    "small arguments of elu": partial(
        small_arguments_pass_functions_as_they_are, lambda z: jax.nn.elu(z, alpha=1.0)
    ),
    "powers and angles of small arguments": powers_and_angles_of_small_arguments,
    "several filters for a channel": two_filters_for_each_channel,
    "matrices of activations of two orders": a_matrix_of_activations_with_parts_of_two_orders,
    "fast waves": fast_waves_have_their_closed_form,
    "a readout that gates": partial(refused, shared_gate, "a mean that is not random"),
    "one key, two shapes": partial(refused, one_key_two_shapes, "A random key draws one array"),
    "one key, two laws": partial(refused, one_key_two_laws, "A random key draws one array"),
    "bounds that differ": partial(refused, bounds_that_differ, "have one law"),
    "bounds that are drawn": partial(refused, bounds_that_are_drawn, "have one law"),
    "grouped channels": partial(refused, groups_of_two_channels, "all together or each alone"),
    "centred by coincidence": partial(refused, centred_by_coincidence, "centred at every width"),
    "steps at 0": partial(refused, steps_of_something_small, "a function that jumps at 0"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_wrong_limits_are_right_or_refused(kind):
    KINDS[kind]()
