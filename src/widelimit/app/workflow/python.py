"""The lines of Python that give the numbers of a run."""

from typing import Any

import numpy as np

from ...inference import Cholesky
from ...sklearn import ImageResizer, WordVectorizer
from .kinds import Task, stratified
from .model import Model
from .sources import Source


def lines_of(source: Source, model: Model, seed: int, train: int, test: int) -> str:
    """Read, split, fit and score, with the options of a run that are not the usual ones."""
    estimator = type(model.estimator).__name__
    steps = [*_preparation(model), f"{estimator}({_changed(model.estimator)})"]
    others = ("prepare_columns", "ImageResizer", "WordVectorizer")
    used = [estimator, *(one for one in others if any(one in step for step in steps))]
    metric = "accuracy_score" if model.task is Task.CLASSIFY else "r2_score"
    beside = {} if source.mask is None else {"mask": "mask"}
    beside |= {} if source.weights is None else {"sample_weight": "weights"}
    step = estimator.lower()
    fit = [f", {step}__{option}={name}_train" for option, name in beside.items()]
    predict = ", mask=mask_test" if "mask" in beside else ""
    return "\n".join(
        [
            "import numpy as np",
            f"from sklearn.metrics import {metric}",
            "from sklearn.model_selection import train_test_split",
            "from sklearn.pipeline import make_pipeline",
            "from widelimit import data",
            f"from widelimit.sklearn import {', '.join(used)}",
            "",
            *source.python,
            *_split(source, model.task, ["X", "y", *beside.values()], seed, train, test),
            f"model = make_pipeline({', '.join(steps)})",
            f"model.fit(X_train, y_train{''.join(fit)})",
            f"print({metric}(y_test, model.predict(X_test{predict})))",
        ]
    )


def _split(
    source: Source, task: Task, names: list[str], seed: int, train: int, test: int
) -> list[str]:
    """The training and the test part of all that is named."""

    def divided(into: list[str], given: list[str], y: np.ndarray, by: str, *sizes: int) -> str:
        keeps = f", stratify={by}" if stratified(y, task, *sizes) else ""
        return (
            f"{', '.join(into)} = train_test_split(\n"
            f"    {', '.join(given)}, train_size={sizes[0]}, test_size={sizes[1]}, "
            f"random_state={seed}{keeps}\n)"
        )

    if source.test is None:
        into = [f"{name}_{part}" for name in names for part in ("train", "test")]
        return [divided(into, names, source.y, "y", train, test)]
    split = source.columns.get("split")
    rows = f"np.arange(len(y)) >= {int(source.test[0])}"
    rows = rows if split is None else f"(frame[{split!r}] == 'test').to_numpy()"
    lines = [f"test = {rows}"]
    held = np.isin(np.arange(len(source)), source.test)
    for part, mark, inside, wanted in (
        ("train", "~test", ~held, train),
        ("test", "test", held, test),
    ):
        own, there = [f"{name}_{part}" for name in names], int(inside.sum())
        lines.append(f"{', '.join(own)} = {', '.join(f'{name}[{mark}]' for name in names)}")
        if wanted < there:
            into, sizes = [item for name in own for item in (name, "_")], (wanted, there - wanted)
            lines.append(divided(into, own, source.y[inside], f"y_{part}", *sizes))
    return lines


def _preparation(model: Model) -> list[str]:
    prepare = dict(model.pipeline.steps).get("prepare")
    if prepare is None:
        return []
    if isinstance(prepare, ImageResizer):
        return [f"ImageResizer({prepare.size})"]
    if model.text is None:
        return ["prepare_columns(X_train)"]
    (found,) = (step for _, step, _ in prepare.transformers if isinstance(step, WordVectorizer))
    changed = _changed(found)
    more = f", vectorizer=WordVectorizer({changed})" if changed else ""
    return [f"prepare_columns(X_train, text={model.text!r}{more})"]


def _changed(step: Any) -> str:
    """Options of an estimator or a transformer that are not the usual ones."""
    usual = type(step)().get_params(deep=False)
    given = step.get_params(deep=False) | ({"store": None} if "store" in usual else {})
    if isinstance(given.get("solver"), Cholesky):
        given["solver"] = None
    changed = {name: value for name, value in given.items() if value != usual[name]}
    return ", ".join(
        f"{name}={(str(value) if isinstance(value, str) else value)!r}"
        for name, value in changed.items()
    )
