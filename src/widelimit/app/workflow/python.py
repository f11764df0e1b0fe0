"""The lines of Python that give the numbers of a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...inference import Cholesky
from ...sklearn import ImageResizer, WordVectorizer
from .kinds import Task, stratified
from .model import Model
from .sources import Reading, Source


@dataclass(frozen=True, eq=False)
class Lines:
    """Read, split, fit and score, with the options of a run that are not the usual ones."""

    source: Source
    how: Reading
    image_size: int
    seed: int
    model: Model
    train: int
    test: int

    def __str__(self) -> str:
        """The program."""
        estimator = type(self.model.estimator).__name__
        steps = [*self._preparation(), f"{estimator}({_called(self._options())})"]
        others = ("prepare_columns", "ImageResizer", "WordVectorizer")
        used = [estimator, *(one for one in others if any(one in step for step in steps))]
        classes = self.model.task is Task.CLASSIFY
        metric = "accuracy_score" if classes else "r2_score"
        return "\n".join(
            [
                "import numpy as np",
                f"from sklearn.metrics import {metric}",
                "from sklearn.model_selection import train_test_split",
                "from sklearn.pipeline import make_pipeline",
                "from widelimit import data",
                f"from widelimit.sklearn import {', '.join(used)}",
                "",
                *self._read(),
                *self._split(),
                f"model = make_pipeline({', '.join(steps)})",
                f"model.fit(X_train, y_train{self._given('train', estimator.lower() + '__')})",
                f"print({metric}(y_test, model.predict(X_test{self._given('test', '')})))",
            ]
        )

    @property
    def _more(self) -> dict[str, str]:
        """What goes with the examples beside their labels: by the name of the option."""
        mask = {} if self.source.mask is None else {"mask": "mask"}
        return mask | ({} if self.source.weights is None else {"sample_weight": "weights"})

    def _given(self, part: str, prefix: str) -> str:
        names = [name for name in self._more if part == "train" or name == "mask"]
        return "".join(f", {prefix}{name}={self._more[name]}_{part}" for name in names)

    def _read(self) -> list[str]:
        """X, y and what goes with them, of all examples."""
        path, held = repr(str(self.source.path)), self.source.test is not None
        if self.source.frame is not None:
            inputs, label = list(self.model.inputs), self.model.label
            options = _called({"": path} | _quoted(self.how.table_options()))
            reader = "load_imdb" if self.source.path.is_dir() else "read_frame"
            lines = [f"frame = data.{reader}({options})"]
            if self.how.skip:
                lines.append(f"frame = frame.dropna(subset={[*inputs, label]!r})")
            lines.append(f"X, y = frame[{inputs!r}], frame[{label!r}].to_numpy()")
            if self.how.weight is not None:
                lines.append(f"weights = frame[{self.how.weight!r}].to_numpy()")
            return lines
        loader = "image_folder" if self.source.path.is_dir() else "npz"
        size = {"size": repr((self.image_size,) * 2)} if self.source.path.is_dir() else {}
        call = f"load_{loader}{'_split' * held}({_called({'': path} | size)})"

        def both(name: str) -> str:
            return f"np.r_[found.train.{name}, found.test.{name}]" if held else f"found.{name}"

        names = self.source.y is not None and self.source.y.dtype.kind == "O"
        y = f"np.array(found.class_names)[{both('y')}]" if names else both("y")
        if self.model.task is Task.REGRESS:
            y = f"np.array(found.class_names or range(0), float)[{both('y')}]" if names else y
        lines = [f"found = data.{call}", f"X, y = {both('x')}, {y}"]
        return lines if self.source.mask is None else [*lines, f"mask = {both('real')}"]

    def _split(self) -> list[str]:
        """The training and the test part."""
        names = ["X", "y", *self._more.values()]
        y = self.source.y
        assert y is not None
        if self.source.test is None:
            parts = [f"{name}_{part}" for name in names for part in ("train", "test")]
            keeps = stratified(y, self.model.task, self.train, self.test)
            return self._divided(parts, names, self.train, self.test, "y" if keeps else None)
        split = self.source.columns.get("split")
        first = int(self.source.test[0])
        test = f"np.arange(len(y)) >= {first}"
        if split is not None:
            test = f"(frame[{split!r}] == 'test').to_numpy()"
        lines = [f"test = {test}"]
        for part, rows in (("train", "~test"), ("test", "test")):
            left = ", ".join(f"{name}_{part}" for name in names)
            lines.append(f"{left} = {', '.join(f'{name}[{rows}]' for name in names)}")
        held = np.isin(np.arange(len(self.source)), self.source.test)
        for part, rows, wanted in (("train", ~held, self.train), ("test", held, self.test)):
            there = int(rows.sum())
            if wanted < there:
                own = [f"{name}_{part}" for name in names]
                into = [item for name in own for item in (name, "_")]
                keeps = stratified(y[rows], self.model.task, wanted, there - wanted)
                by = f"y_{part}" if keeps else None
                lines += self._divided(into, own, wanted, there - wanted, by)
        return lines

    def _divided(
        self, into: list[str], names: list[str], train: int, test: int, stratify: str | None
    ) -> list[str]:
        by = f", stratify={stratify}" if stratify else ""
        return [
            f"{', '.join(into)} = train_test_split(",
            f"    {', '.join(names)}, train_size={train}, test_size={test}, "
            f"random_state={self.seed}{by}",
            ")",
        ]

    def _preparation(self) -> list[str]:
        prepare = dict(self.model.pipeline.steps).get("prepare")
        if prepare is None:
            return []
        if isinstance(prepare, ImageResizer):
            return [f"ImageResizer({prepare.size})"]
        if self.model.text is None:
            return ["prepare_columns(X_train)"]
        found = next(s for _, s, _ in prepare.transformers if isinstance(s, WordVectorizer))
        usual = WordVectorizer().get_params()
        changed = {name: v for name, v in found.get_params().items() if v != usual[name]}
        vectorizer = f"WordVectorizer({_called(_quoted(changed))})"
        more = f", vectorizer={vectorizer}" if changed else ""
        return [f"prepare_columns(X_train, text={self.model.text!r}{more})"]

    def _options(self) -> dict[str, str]:
        """Options of the estimator that are not the usual ones."""
        estimator = self.model.estimator
        usual = type(estimator)().get_params(deep=False)
        given = estimator.get_params(deep=False) | {"store": None}
        if isinstance(given["solver"], Cholesky):
            given["solver"] = None
        return _quoted({name: value for name, value in given.items() if value != usual[name]})


def _quoted(options: dict[str, Any]) -> dict[str, str]:
    return {n: repr(str(v)) if isinstance(v, Path | str) else repr(v) for n, v in options.items()}


def _called(options: dict[str, str]) -> str:
    return ", ".join(value if not name else f"{name}={value}" for name, value in options.items())
