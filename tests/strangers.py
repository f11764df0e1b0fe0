"""A layer as a user would write it, outside the package, from CONTRIBUTING's recipe."""

from typing import Any

import widelimit as wl
from widelimit.layers.base import cast, leaf
from widelimit.options import Range


class Affine(wl.Layer):
    """`y_a = gain·x_a + shift` in every channel: padding comes out as `shift`, not as zero.

    With channel means m: κ_ab ← gain²κ_ab + gain·shift(m_a + m'_b) + shift², Θ ← gain²Θ.
    """

    gain: Any = leaf("gain", where=Range.POSITIVE, default=1.0)
    shift: Any = leaf("shift", default=0.0)

    @property
    def cuttable(self):
        return True

    def outline(self, before):
        return before.to(gaussian=False, fresh=False)

    def forward(self, params, x, mask, key):
        return cast(self.gain, x) * x + cast(self.shift, x)

    def memo(self, example):
        return example.mean_for("Affine")

    def cross(self, pair, memo1, memo2):
        pair = pair.forced()
        gain, shift = cast(self.gain, pair.nngp), cast(self.shift, pair.nngp)
        nngp = gain**2 * pair.nngp + shift**2
        if memo1 is not None:
            nngp = nngp + gain * shift * (pair.left(memo1) + pair.right(memo2))
        return pair.to(nngp, None if pair.ntk is None else gain**2 * pair.ntk)

    def mean(self, example, memo):
        ones = example.ones()
        moved = cast(self.shift, ones) * ones
        return moved if memo is None else moved + cast(self.gain, memo) * memo
