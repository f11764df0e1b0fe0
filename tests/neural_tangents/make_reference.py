"""Make tests/reference/neural_tangents/numbers.npz with neural-tangents 0.6.5, in float64.

In the environment that tests/reference/make_reference.py describes, from the root:

    .venv-reference/bin/python tests/neural_tangents/make_reference.py           # every case
    .venv-reference/bin/python tests/neural_tangents/make_reference.py imdb new  # some

Words are parts of names; `new` stands for what has no numbers yet. The others keep theirs.
"""

import functools
import sys

import jax

jax.config.update("jax_enable_x64", True)

import neural_tangents as nt  # type: ignore[import-not-found]  # noqa: E402
from stax_calls import CALLS  # noqa: E402
from stax_examples import EXAMPLES  # noqa: E402
from stax_networks import NETWORKS  # noqa: E402
from stax_numbers import load, result, save  # noqa: E402

if __name__ == "__main__":
    words = sys.argv[1:]
    runs = {name: network.kernel for name, network in NETWORKS.items()} | CALLS | EXAMPLES
    known = load() if words else {}
    save(
        {
            name: known[name]
            if name in known and not any(word in name for word in words)
            else result(functools.partial(run, nt))
            for name, run in runs.items()
        }
    )
