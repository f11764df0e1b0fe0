"""`--solver`: every solver ends in the predictions of the dense one, or says what it cannot."""

import importlib
import json

import numpy as np
import pytest
from command_line import call, refused, write_flowers

from widelimit.app.workflow import NetworkName, Reading, Settings, Task, run, solving
from widelimit.data import stratified_order
from widelimit.inference import BlockedCholesky, Cholesky, ConjugateGradients, Nystrom

pytest.importorskip("zarr")

HOW, NET = Reading(label="height"), NetworkName.LINEAR
SOLVERS = {
    solving.SolverName.BLOCKED: {"block": 16},
    solving.SolverName.GRADIENTS: {"tolerance": 1e-12},
    solving.SolverName.NYSTROM: {"landmarks": 32},
}


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    return write_flowers(tmp_path_factory.mktemp("solvers") / "flowers.csv")


@pytest.fixture(scope="module")
def dense(flowers):
    return run(flowers, Task.REGRESS, how=HOW, settings=Settings(network=NET, folds=2))


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_finds_what_the_dense_one_does(tmp_path, flowers, dense, name):
    solver = solving.solver_named(name, **SOLVERS[name])
    settings = Settings(network=NET, folds=2, solver=solver)
    found = run(flowers, Task.REGRESS, how=HOW, settings=settings, kernel_folder=tmp_path)
    posterior, wanted = found.process.posterior, dense.process.posterior
    assert found.model.estimator.noise_ == pytest.approx(dense.model.estimator.noise_, rel=1e-9)
    answers = found.predicted.answers, dense.predicted.answers
    np.testing.assert_allclose(*answers, rtol=2e-3, atol=1e-3)
    np.testing.assert_allclose(found.predicted.std, dense.predicted.std, rtol=2e-3)
    assert found.folds.numbers() == pytest.approx(dense.folds.numbers(), rel=1e-9)
    told = dict(solving.facts_of(posterior, solver))
    assert told["solver"] == name.value
    if name == "conjugate-gradients":
        assert solving.evidence(posterior) is None
        assert "log evidence" not in told
    else:
        assert solving.evidence(posterior) == pytest.approx(wanted.log_evidence, rel=1e-3)
        assert ("log evidence, lower bound" in told) == name.startswith("nystrom")


def test_folds_are_those_of_the_first_examples(flowers, monkeypatch):
    """Where the solver has no dense factor: every fold by a solve of its own."""
    monkeypatch.setattr(importlib.import_module("widelimit.app.workflow.run"), "SHOWN", 20)
    settings = Settings(network=NET, folds=4, solver=Nystrom(landmarks=32))
    found = run(flowers, Task.REGRESS, how=HOW, settings=settings)
    assert (len(found.train), found.kernel.shape) == (32, (20, 20))
    y, kernel, noise = found.train.y[:20], found.kernel, found.process.gp.noise
    targets, answers = found.model.targets(found.train.y)[:20], np.empty(20)
    folds = np.empty(20, int)
    folds[stratified_order(y, key=1)] = np.arange(20) % 4
    for fold in range(4):
        out, rest = folds == fold, folds != fold
        weights = np.linalg.solve(kernel[np.ix_(rest, rest)] + noise * np.eye(15), targets[rest])
        answers[out] = kernel[np.ix_(out, rest)] @ weights
    answers = found.model.answers(answers)
    wanted = 1 - np.sum((y - answers) ** 2) / np.sum((y - y.mean()) ** 2)
    assert found.folds.value == pytest.approx(wanted, rel=1e-6)


def test_a_model_with_landmarks_says_so_and_is_saved(capsys, tmp_path, flowers):
    arguments = ["classify", flowers, "--label", "species", "--network", NET.value, "--folds", 0]
    arguments += ["--solver", "nystrom", "--landmarks", 12, "--save", tmp_path / "m"]
    numbers = json.loads(call(capsys, *arguments, "--out", tmp_path / "out", "--json").out)
    assert numbers["solver"] == "nystrom"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<td>nystrom</td>" in page
    assert "log evidence, lower bound" in page
    call(capsys, "predict", tmp_path / "m", flowers, "-o", tmp_path / "p.csv")
    tables = [
        np.genfromtxt(path, delimiter=",", names=True, dtype=None, encoding=None)
        for path in (tmp_path / "out" / "predictions.csv", tmp_path / "p.csv")
    ]
    chances = dict(zip(tables[1]["example"], tables[1]["piris"], strict=True))
    for one in tables[0]:
        assert chances[one["example"]] == pytest.approx(one["piris"], abs=1e-5)


def test_options_of_another_solver_are_refused(capsys, tmp_path, flowers):
    start = ["classify", flowers, "--label", "species", "--out", tmp_path / "out"]
    said = refused(capsys, *start, "--landmarks", 5)
    assert "has no landmarks: that is an option of nystrom" in said
    assert "(--landmarks, --solver)" in said
    said = refused(capsys, *start, "--solver", "nystrom", "--tolerance", 1e-3)
    assert "has no tolerance: that is an option of conjugate-gradients" in said
    assert "(--landmarks)" in refused(capsys, *start, "--solver", "nystrom")
    said = refused(capsys, *start, "--solver", "blocked-cholesky", "--save", tmp_path / "m")
    assert "--save" in said
    assert not (tmp_path / "out").exists()


def test_names_and_solvers_are_one_to_one():
    made = [
        solving.solver_named(name, landmarks=3 if name == solving.SolverName.NYSTROM else None)
        for name in solving.SolverName
    ]
    assert [type(solver) for solver in made] == [
        Cholesky,
        BlockedCholesky,
        ConjugateGradients,
        Nystrom,
    ]
    assert [solving.name_of(solver) for solver in made] == list(solving.SolverName)
