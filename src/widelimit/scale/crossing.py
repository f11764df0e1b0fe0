"""Blocks of other examples against training examples, computed by workers, gathered in memory.

Network and training examples go to every worker once, and stay there as long as `Crossing` lives;
a block goes from the worker to the client.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.inputs import Inputs
from ..engine.sampling import Sampler
from ..engine.threads import one_at_a_time
from ..errors import MissingExtraError
from ..layers.base import Layer
from ..state import Kernels
from .cluster import MOST_ATTEMPTS, no_worker_lived, require_client
from .store import NAMES

try:
    from distributed import as_completed
except ImportError as missing:
    raise MissingExtraError("distributed", "scale") from missing

# Examples on the sides of a piece: some tenths of a second of work for most networks.
_ROWS, _COLUMNS = 128, 1024


@dataclass(frozen=True, eq=False)
class Crossed:
    """What the workers have: a network and its training examples."""

    net: Layer
    columns: Inputs
    sampler: Sampler | None
    ntk: bool
    dtype: Any
    memory: int

    def block(self, rows: Inputs, columns: slice) -> Kernels:
        """Kernels (rows, some training examples), in this thread alone."""
        with one_at_a_time():
            return self.net.kernel(
                rows,
                self.columns[columns],
                sampler=self.sampler,
                ntk=self.ntk,
                dtype=self.dtype,
                memory=self.memory,
                progress=False,
            )


class Crossing:
    """Training examples on the workers of a client, and their kernels with others."""

    def __init__(self, problem: Crossed, client: Any):
        """Nothing is sent yet."""
        self.problem, self.client = problem, client
        self.sent: Any = None

    def kernels(self, rows: Inputs) -> Kernels:
        """Kernels (rows, training examples)."""
        require_client(self.client)
        size = (rows.size, self.problem.columns.size)
        spans = [
            (slice(i, min(i + _ROWS, size[0])), slice(j, min(j + _COLUMNS, size[1])))
            for i in range(0, size[0], _ROWS)
            for j in range(0, size[1], _COLUMNS)
        ]
        whole: dict[str, np.ndarray] = {}
        waiting, attempts = spans, 0
        while waiting:
            before = len(waiting)
            waiting = self._round(rows, waiting, whole, size)
            attempts = attempts + 1 if len(waiting) == before else 0
            if attempts == MOST_ATTEMPTS:
                raise no_worker_lived("a block", attempts)
        return Kernels(*(whole.get(name) for name in NAMES))

    def _round(
        self, rows: Inputs, spans: list[Any], whole: dict[str, np.ndarray], size: tuple[int, int]
    ) -> list[Any]:
        """Compute blocks; returns those that were lost with the workers that had the examples."""
        if self.sent is None or self.sent.status in ("cancelled", "lost", "error"):
            self.sent = self.client.scatter(self.problem, broadcast=True, hash=False)
        strips = {one.start: one for one, _ in spans}
        parts = {i: self.client.scatter(rows[one], hash=False) for i, one in strips.items()}
        running = {
            self.client.submit(_block, self.sent, parts[one.start], two, pure=False): (one, two)
            for one, two in spans
        }
        lost = []
        for future in as_completed(list(running)):
            place = running.pop(future)
            if future.status in ("cancelled", "lost"):
                self.sent = None
                lost.append(place)
                continue
            found = future.result()
            for name in NAMES:
                part = getattr(found, name)
                if part is not None:
                    into = whole.setdefault(name, np.empty((*size, *part.shape[2:]), part.dtype))
                    into[place] = part
        return lost


def _block(problem: Crossed, rows: Inputs, columns: slice) -> Kernels:
    return problem.block(rows, columns)
