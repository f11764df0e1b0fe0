"""Make the reference fixtures `*.npz` with neural-tangents 0.6.5, and the tables in README.md.

neural-tangents does not import on the JAX that this library uses, so it has an environment of its
own. From the root of the repository:

    python3.11 -m venv .venv-reference
    .venv-reference/bin/pip install "neural-tangents==0.6.5" "jax==0.4.23" "jaxlib==0.4.23" \
        "numpy<2" "scipy<1.13"
    .venv-reference/bin/python tests/reference/make_reference.py            # every case
    .venv-reference/bin/python tests/reference/make_reference.py fcn_relu   # the cases named

To add a case, add a row to the table `CASES` in network_cases.py, attention_cases.py or
prediction_cases.py. The tables in README.md are written anew in every run.
"""

import argparse
import re

import attention_cases
import network_cases
import numpy as np
import prediction_cases
from cases import KernelCase
from load import FOLDER

KERNEL_CASES: dict[str, KernelCase] = network_cases.CASES | attention_cases.CASES
README = FOLDER / "README.md"
MARK = "<!-- Everything below this line is written by make_reference.py. -->"


def arrays_of(name: str) -> dict[str, np.ndarray]:
    """The arrays of one case, checked to be finite and in double precision."""
    case = KERNEL_CASES.get(name)
    made = prediction_cases.CASES[name]() if case is None else case.arrays()
    arrays = {key: np.asarray(value) for key, value in made.items()}
    for key, array in arrays.items():
        if not (array.dtype == bool or (array.dtype == np.float64 and np.isfinite(array).all())):
            raise ValueError(f"{name}: {key} is {array.dtype}, or not finite")
    return arrays


def refusal(case: KernelCase) -> str:
    """The first sentence of neural-tangents' error."""
    try:
        case.arrays()
    except (NotImplementedError, TypeError, ValueError) as error:
        sentence = re.split(r"(?<!i\.e)\. ", " ".join(str(error).split()))[0]
        return f"`{type(error).__name__}`: {sentence}"
    raise AssertionError(f"accepted after all: {case.network.text}")


def tables() -> str:
    """The tables of kernel cases and of refusals."""
    rows = ["## Kernel cases", "", "| case | input | network | note |", "|---|---|---|---|"]
    rows += [
        f"| `{name}` | {case.inputs.text} | `{case.network.text}` | {case.note} |"
        for name, case in KERNEL_CASES.items()
    ]
    rows += ["", "## Refused by neural-tangents", "", "| what | network | error |", "|---|---|---|"]
    rows += [
        f"| {name} | `{case.network.text}` | {refusal(case)} |"
        for name, case in attention_cases.REFUSED.items()
    ]
    return "\n".join(rows)


def main() -> None:
    """Write the fixtures that were asked for, and the tables."""
    known = [*KERNEL_CASES, *prediction_cases.CASES]
    parser = argparse.ArgumentParser(description="Make the reference fixtures.")
    parser.add_argument("names", nargs="*", metavar="name", help="a case (default: all)")
    wanted = parser.parse_args().names
    if unknown := set(wanted) - set(known):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    for name in wanted or known:
        np.savez_compressed(FOLDER / f"{name}.npz", **arrays_of(name))
    by_hand = README.read_text().split(MARK)[0]
    README.write_text(f"{by_hand}{MARK}\n\n{tables()}\n")


if __name__ == "__main__":
    main()
