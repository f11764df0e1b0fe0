"""Whether two networks are the same, however their layers are put into series."""

import equinox as eqx

import widelimit as wl
from widelimit.layers.base import with_fields


def flat(net: wl.Layer) -> wl.Layer:
    """Series inside series are opened, and those of one layer are that layer."""
    if not net.parts:
        return net
    parts = [flat(part) for part in net.parts]
    if not isinstance(net, wl.Serial):
        field = next(name for name, value in vars(net).items() if value is net.parts)
        return with_fields(net, **{field: tuple(parts)})
    layers = [each for p in parts for each in (p.parts if isinstance(p, wl.Serial) else (p,))]
    return layers[0] if len(layers) == 1 else wl.Serial(*layers)


def require_same(found: wl.Layer, expected: wl.Layer) -> None:
    assert eqx.tree_equal(flat(found), flat(expected), rtol=1e-12), f"{found}\n{expected}"
