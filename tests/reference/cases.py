"""What a kernel case is: inputs, a network, and how its kernels are stored."""

import warnings
from typing import NamedTuple

import numpy as np
from described import Described
from inputs import PADDING, Inputs


class KernelCase(NamedTuple):
    """A network to be evaluated on two batches."""

    inputs: Inputs
    network: Described
    note: str = ""

    def arrays(self) -> dict[str, np.ndarray]:
        """Inputs, masks, `nngp` and `ntk`, all in float64."""
        _, _, kernel_fn = self.network.value
        mask_constant = None if self.inputs.mask1 is None else PADDING
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice about ties, branches and unit variance
            given: dict[str, object] = {"mask_constant": mask_constant}
            if self.inputs.pattern1 is not None:
                given["pattern"] = self.inputs.pattern1, self.inputs.pattern2
            kernel = kernel_fn(self.inputs.x1, self.inputs.x2, **given)
        if kernel.is_reversed:
            kernel = kernel.reverse()
        outputs = {"nngp": _unzip(kernel.nngp), "ntk": _unzip(kernel.ntk)}
        return self.inputs.arrays() | outputs


def _unzip(kernel: np.ndarray) -> np.ndarray:
    """`(N1, N2, H, H', W, W')`, as neural-tangents has it, to `(N1, N2, H, W, H', W')`."""
    axes = range(2, kernel.ndim)
    return np.transpose(np.asarray(kernel), (0, 1, *axes[::2], *axes[1::2]))
