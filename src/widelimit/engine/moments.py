"""Running means and standard errors over independent draws, in memory of one draw."""

import numpy as np


class Moments:
    """Mean and standard error of several quantities, from batches of draws (Welford's update).

    Two sets of draws with counts n, m, means a, b and sums of squares A, B have together

        mean = a + (b − a) m/(n+m),  squares = A + B + (b − a)² nm/(n+m);

    the standard error of the mean of n draws is √(squares / (n(n−1))).
    """

    def __init__(self):
        """Nothing seen yet."""
        self.count = 0
        self._means: list[np.ndarray | None] = []
        self._squares: list[np.ndarray | None] = []

    def add(self, *batches: np.ndarray | None) -> None:
        """More draws: their axis comes first. A quantity that is None stays None."""
        draws = next(len(batch) for batch in batches if batch is not None)
        if self.count == 0:
            self._means = [None if b is None else np.zeros(b.shape[1:]) for b in batches]
            self._squares = [None if m is None else np.zeros_like(m) for m in self._means]
        total = self.count + draws
        for batch, mean, squares in zip(batches, self._means, self._squares, strict=True):
            if batch is None or mean is None or squares is None:
                continue
            batch = np.asarray(batch, np.float64)
            centre = batch.mean(axis=0)
            gap = centre - mean
            squares += ((batch - centre) ** 2).sum(axis=0) + gap**2 * (self.count * draws / total)
            mean += gap * (draws / total)
        self.count = total

    def means(self) -> list[np.ndarray | None]:
        """The mean of each quantity."""
        return self._means

    def errors(self) -> list[np.ndarray | None]:
        """The standard error of each mean; None for fewer than two draws."""
        if self.count < 2:
            return [None] * len(self._squares)
        spread = self.count * (self.count - 1)
        return [None if s is None else np.sqrt(s / spread) for s in self._squares]
