"""Where rounding ends: the numbers that decide whether something cancels."""

NO_MEAN = 1e-9
"""Of the sides' deviations: a mean over channels that is smaller is zero."""
PLAIN_MEAN = 1e-6
"""A mean that is larger is compared with nothing: activations are of order one."""
NO_DIFFERENCE = 1e-9
"""Of two averages over channels: what is left, if smaller, is of an order that is not followed."""
NO_VARIANCE = 1e-14
"""Of the size of a form's terms, squared: a variance that is smaller is zero."""
NO_EVEN_PART = 1e-9
"""Of a product: what a change of its factor's sign leaves is odd, if the rest is smaller."""
PARALLEL = 4e-16
"""Correlations this close to ±1 are ±1."""
SAME_MEAN = 1e-12
"""Of the outputs' mean: draws of the scalars that move it by less do not."""
SIMPLE_EXPONENT = 1e-9
"""Distance of an exponent from the fraction that it is taken for."""
