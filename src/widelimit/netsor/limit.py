"""The law of a program at infinite width: Gaussian given its scalars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..errors import NetworkError, ShapeError
from ..laws.marginal import Marginal
from ..options import RandomKey, generator, seed_words, whole
from ..programs.front import Outputs, ProgramLaw
from ..programs.integration import LimitValue, Method, Rule, estimated
from ..programs.interpreter import Machine
from .nodes import Dot, Vector, real_numbers
from .run import Found, Run

if TYPE_CHECKING:
    from .program import Program


class ConditionalLaw:
    """The limit given `draws` values of all scalars: a Gaussian family, one per draw."""

    def __init__(self, program: Program, scalars: np.ndarray, rule: Rule):
        self.program, self.scalars, self._rule = program, scalars, rule
        chunk = _draws_at_once(program)
        parts = [scalars[i : i + chunk] for i in range(0, len(scalars), chunk)]
        self._parts = [cache(partial(self._run, part)) for part in parts]

    def _run(self, scalars: np.ndarray, rule: Rule) -> Run:
        given = dict(zip(self.program.dots, scalars.T, strict=True))
        return Run(self.program, rule, draws=len(scalars), given=given)

    def __repr__(self) -> str:
        return f"ConditionalLaw({self.program.name!r} given {self.draws} draws of its scalars)"

    @property
    def draws(self) -> int:
        """How many values of the scalars the law is conditioned on."""
        return len(self.scalars)

    def gram(self, vectors: Sequence[Vector] | None = None) -> LimitValue:
        """`E[Z^u Z^v | scalars]`, shape `(draws, m, m)`; default: the program's outputs."""
        chosen = self.program.chosen(vectors)
        found = [
            estimated(self._rule, lambda rule, run=run: run(rule).gram(chosen))
            for run in self._parts
        ]
        value, error = (self._all([getattr(f, part) for f in found]) for part in ("value", "error"))
        return LimitValue(value, error, max(f.method for f in found))

    def kernels(self, vectors: Sequence[Vector] | None = None) -> np.ndarray:
        """The values of `gram` alone, for averages over draws, which have an error of their own."""
        chosen = self.program.chosen(vectors)
        return self._all([run(self._rule).gram(chosen)[0] for run in self._parts])

    def _all(self, arrays: list[np.ndarray]) -> np.ndarray:
        """Of all draws, of arrays (draws or none, m, m) for each run."""
        pairs = [(a, run(self._rule).draws) for a, run in zip(arrays, self._parts, strict=True)]
        return np.concatenate([np.broadcast_to(a, (n, *a.shape[-2:])) for a, n in pairs])

    def sample(
        self, key: RandomKey, *, vectors: Sequence[Vector] | None = None, coordinates: int = 1
    ) -> np.ndarray:
        """Coordinates of `vectors`, i.i.d. given the scalars: `(draws, coordinates, m)`."""
        whole("coordinates", coordinates)
        chosen, rng = self.program.chosen(vectors), generator(key, 1)
        return np.concatenate(
            [run(self._rule).sample(chosen, rng, coordinates) for run in self._parts]
        )


def _draws_at_once(program: Program) -> int:
    """How many draws of the scalars are followed at once; functions of them take grids each."""
    late = any(n.stage and n.name == "map" and isinstance(n, Vector) for n in program.nodes)
    return 2**12 if late else 2**16


class LimitLaw(ProgramLaw):
    """A program's limit.

    Vectors without scalars have second moments `E[Z^u Z^v]`. The scalars are Gaussian with
    `Cov(p_k, p_l) = E[Z^{k,1} Z^{k,2} Z^{l,1} Z^{l,2}]` and independent of the vectors. Vectors
    that use scalars have *random* second moments: `given(scalars)` or `condition(draws, key)`.
    Where dot products follow vectors that use scalars, scalars come in stages, each Gaussian given
    the earlier ones.

    `density`, `cdf`, `sf`, `quantiles`, `moments` and `kurtosis` are those of one coordinate of a
    vector, as `net.law(x)` has them: `at` is a vector, or the number of an output, and may be left
    out where there is one output. 4096 draws of the scalars are averaged over; `marginal(vector)`
    takes another number of them.
    """

    def __init__(self, program: Program, integration: Rule):
        self.program, self.name, self.integration = program, program.name, integration
        self._run = cache(lambda rule: Run(program, rule))
        self._marginals: dict[Vector, Marginal] = {}

    def _read(self, reading: Callable[[Run], Found]) -> LimitValue:
        return estimated(self.integration, lambda rule: reading(self._run(rule)))

    # ---- deterministic part ---------------------------------------------------------------

    def second_moment(self, left: Vector, right: Vector) -> LimitValue:
        """`E[Z^left Z^right]` for vectors without scalars; for MatMul vectors, the covariance."""
        chosen = self._without_scalars((left, right))
        return self._read(lambda run: run.second_moment(*chosen))

    def gram(self, vectors: Sequence[Vector] | None = None) -> LimitValue:
        """`E[Z^u Z^v]` for all pairs, shape `(m, m)`; default: the program's outputs."""
        chosen = self._without_scalars(vectors)
        return self._read(lambda run: run.gram(chosen))

    def mean(self, vector: Vector) -> LimitValue:
        """`E[Z^vector]` for a vector without scalars; 0 for MatMul vectors."""
        (chosen,) = self._without_scalars((vector,))
        return self._read(lambda run: run.mean(chosen))

    def scalar_covariance(self, scalars: Sequence[Dot] | None = None) -> LimitValue:
        """Covariance of dot products; default: all that depend on no earlier scalar."""
        first = [dot for dot in self.program.dots if dot.stage == 1]
        chosen = first if scalars is None else list(scalars)
        if not chosen or any(dot not in first for dot in chosen):
            raise NetworkError(
                "Only dot products of vectors without scalars have a covariance in closed form; "
                "later ones are Gaussian given the earlier scalars.",
                got=", ".join(getattr(s, "label", repr(s)) for s in chosen) or "no dot products",
                remedy="use sample_scalars for the others",
            )
        return self._read(lambda run: run.scalar_covariance(tuple(chosen)))

    # ---- scalars --------------------------------------------------------------------------

    def sample_scalars(self, draws: int, key: RandomKey) -> np.ndarray:
        """Joint draws of all dot products, `(draws, dots)` in the order of `program.dots`."""
        whole("draws", draws)
        rule = replace(self.integration, words=(*seed_words(key), 0))
        chunk = _draws_at_once(self.program)
        runs = (
            Run(self.program, rule.replicate(begin), draws=min(chunk, draws - begin))
            for begin in range(0, draws, chunk)
        )
        return np.concatenate([run.scalars() for run in runs])

    def given(self, scalars: ArrayLike) -> ConditionalLaw:
        """The law given values of all dot products: `(dots,)` or `(draws, dots)`."""
        dots = self.program.dots
        array = np.atleast_2d(real_numbers("Scalars", scalars))
        if array.ndim != 2 or array.shape[1] != len(dots) or len(array) == 0:
            raise ShapeError(
                "Scalars are given as one row per draw, one column per dot product.",
                got=f"shape {np.shape(scalars)} for {len(dots)} dot products",
                remedy="pass an array of shape (draws, dots), columns as in program.dots",
            )
        return ConditionalLaw(self.program, array, self.integration)

    def condition(self, draws: int, key: RandomKey) -> ConditionalLaw:
        """The law given `draws` sampled values of the scalars."""
        return self.given(self.sample_scalars(draws, key))

    # ---- outputs --------------------------------------------------------------------------

    def sample(
        self,
        draws: int,
        key: RandomKey,
        *,
        vectors: Sequence[Vector] | None = None,
        coordinates: int = 1,
    ) -> np.ndarray:
        """Draws of `coordinates` coordinates of `vectors`: `(draws, coordinates, m)`.

        Coordinates of one draw share its scalars; draws are independent.
        """
        return self.condition(draws, key).sample(key, vectors=vectors, coordinates=coordinates)

    def marginal(self, vector: Vector, *, draws: int = 4096, key: RandomKey = 0) -> Marginal:
        """The law of one coordinate of a vector that is Gaussian given the scalars.

        A Gaussian with a random variance, over `draws` of the scalars: its density, quantiles,
        moments and kurtosis come with standard errors, as those of `net.law(x).at(...)` do.
        """
        self.program.chosen([vector])
        whole("draws", draws, least=2)  # one draw has no spread, and no standard error
        value = Run(self.program, self.integration).value(vector)
        if not value.is_linear or value.constant.any():
            raise NetworkError(
                "A vector with a marginal law is linear in vectors W @ h and centred inputs, with "
                "numbers and scalars as coefficients.",
                got=self.program.described(vector),
                remedy="use sample(draws, key, vectors=[...]) for other vectors",
            )
        if not vector.stage:
            return Marginal(np.atleast_1d(self.second_moment(vector, vector).value), groups=1)
        variances = self.condition(draws, key).kernels([vector])[:, 0, 0]
        return Marginal(variances, groups=draws)

    def _marginal(self, at: Any) -> Marginal:
        outputs = self.program.outputs
        number = 0 if at is None and len(outputs) == 1 else at
        if isinstance(number, int | np.integer) and 0 <= number < len(outputs):
            at = outputs[number]
        if not isinstance(at, Vector):
            raise ShapeError(
                "A law is read at a vector of its program, or at the number of an output.",
                got=f"at={at!r} in a program with {len(outputs)} outputs",
                remedy="pass at=vector, or at=0 for the first output",
            )
        if at not in self._marginals:
            self._marginals[at] = self.marginal(at)
        return self._marginals[at]

    def expected_gram(
        self, draws: int, key: RandomKey, *, vectors: Sequence[Vector] | None = None
    ) -> LimitValue:
        """`E[Z^u Z^v]`, scalars averaged out over `draws` samples, with its standard error."""
        whole("draws", draws, least=2)
        values = self.condition(draws, key).kernels(vectors)
        error = np.std(values, axis=0, ddof=1) / np.sqrt(draws)
        return LimitValue(np.mean(values, axis=0), error, Method.SAMPLING)

    def __repr__(self) -> str:
        outputs = ", ".join(vector.label for vector in self.program.outputs)
        return f"LimitLaw({self.name!r}, outputs {outputs})"

    def outputs(self) -> Outputs:
        vectors = self.program.outputs
        marginals = tuple(self._marginal(vector) for vector in vectors)
        random = any(vector.stage for vector in vectors)
        second = self.expected_gram(4096, 0) if random else self.gram()
        return Outputs(np.zeros(len(vectors)), second, marginals)

    def machine(self) -> Machine:
        run = Run(self.program, self.integration, draws=2)
        for node in self.program.nodes:
            run.value(node)
        return run.machine

    def _without_scalars(self, vectors: Sequence[Vector] | None) -> tuple[Vector, ...]:
        chosen = self.program.chosen(vectors)
        for vector in chosen:
            if vector.stage > 0:
                raise NetworkError(
                    "A vector that uses scalars has a random second moment.",
                    got=vector.label,
                    remedy="use law.condition(draws, key).gram(...), law.given(scalars), or "
                    "law.expected_gram(draws, key)",
                )
        return chosen
