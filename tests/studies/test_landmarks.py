"""The study of landmarks: nested landmarks, fair ridges, differences on the same tests."""

import numpy as np
import pytest

import widelimit as wl
from studies import landmarks
from studies.landmarks import LabelledKernel, compared, first, marked

RNG = np.random.default_rng(0)
LABELS = np.arange(130) % 3
POINTS = RNG.normal(size=(130, 4)) + 1.5 * np.eye(4)[LABELS]
KERNEL = np.exp(-0.2 * ((POINTS[:, None] - POINTS[None, :90]) ** 2).sum(-1)).astype(np.float32)
PROBLEM = LabelledKernel(KERNEL, LABELS[:90], LABELS[90:])


def test_fewer_landmarks_are_the_first_of_many():
    many, few = marked(PROBLEM, 60), marked(PROBLEM, 20)
    np.testing.assert_array_equal(many.pivots[:20], few.pivots)
    some = first(many, 20, np.diagonal(PROBLEM.square))
    np.testing.assert_allclose(some.factor, few.factor)
    np.testing.assert_allclose(some.missed, few.missed, atol=1e-5)


def test_all_landmarks_are_exact():
    exact, few, whole = compared(PROBLEM, "rbf", "NNGP", "points", (9, 1))
    assert exact["accuracy"] > 0.6
    assert (exact["entries"], few["entries"], whole["entries"]) == (90 * 91 // 2, 900, 8100)
    assert whole["gap"] == 0
    assert whole["missed"] < 1e-4 < few["missed"] < 1
    assert whole["validation"] == pytest.approx(exact["validation"], abs=0.02)
    assert few["gap"] == pytest.approx(few["accuracy"] - exact["accuracy"])
    columns, lines = landmarks.tables({"rows": [exact, few, whole], "folds": []})[0]
    assert {len(line) for line in lines} == {len(columns)}


def test_eigenvectors_are_the_nearest_kernel_of_a_rank():
    rows = compared(PROBLEM, "rbf", "NNGP", "points", (9, 1), eigenvectors=True)
    exact, few = rows[0], rows[1]
    best, all_of_them = (row for row in rows if row["solver"] == "eigenvectors")
    assert best["landmarks"] == few["landmarks"] == 10
    assert 0 < best["missed"] < few["missed"]
    assert best["accuracy"] < exact["accuracy"]
    for name in ("accuracy", "ridge", "validation"):
        assert all_of_them[name] == pytest.approx(exact[name])
    # By hand: the kernel of ten eigenvectors in place of the exact one, on both sides.
    square = KERNEL[:90].astype(np.float64)
    values, vectors = np.linalg.eigh(square)
    features = KERNEL @ vectors[:, -10:] / np.sqrt(values[-10:])
    solved = np.linalg.solve(
        features[:90] @ features[:90].T + best["ridge"] * np.eye(90), np.eye(3)[LABELS[:90]] - 1 / 3
    )
    found = (features[90:] @ features[:90].T @ solved).argmax(1)
    assert best["accuracy"] == pytest.approx(np.mean(found == LABELS[90:]))


def test_in_folds_every_training_image_is_a_test_once(monkeypatch):
    seen = []

    def spied(fold, *args, **options):
        seen.append(fold)
        return compared(fold, *args, **options)

    monkeypatch.setattr(landmarks, "compared", spied)
    exact, few, best = landmarks.in_folds(PROBLEM, "rbf", "NNGP", "points")
    assert [len(fold.test) for fold in seen] == [18] * 5
    assert exact["tests"] == few["tests"] == 90
    assert few["landmarks"] == 72 // 4
    # The kernel knows its points: each is at distance 0 of itself alone, and no test is a member.
    for fold in seen:
        np.testing.assert_array_equal(np.diagonal(fold.square), 1)
        assert fold.cross.max() < 1
        labels = np.concatenate([fold.train, fold.test])
        np.testing.assert_array_equal(np.bincount(labels), np.bincount(PROBLEM.train))
    single = [compared(fold, "rbf", "NNGP", "points", (4,)) for fold in seen]
    assert few["gap"] == pytest.approx(np.mean([rows[1]["gap"] for rows in single]))
    changes = np.array([rows[1]["gap_error"] for rows in single])
    assert few["gap_error"] == pytest.approx(np.sqrt((changes**2).sum()) / 5)
    assert best["landmarks"] == few["landmarks"]
    columns, lines = landmarks.tables({"rows": [], "folds": [exact, few, best]})[1]
    assert {len(line) for line in lines} == {len(columns)}


NETWORKS = {
    "dense": (wl.Flatten(), *(wl.Dense(8, b_std=0.3), wl.Relu()) * 2),
    "convolutions": (*(wl.Conv(8, (3, 3)), wl.Relu()) * 2, wl.Flatten()),
    "convolutions, pooled": (*(wl.Conv(8, (3, 3)), wl.Relu()) * 2, wl.MeanPool()),
}


@pytest.mark.slow
@pytest.mark.optimised  # three million pairs of pooled images
@pytest.mark.parametrize("name", NETWORKS)
def test_a_quarter_of_handwritten_digits_as_landmarks_costs_little(name):
    """1,200 scanned digits, 300 as landmarks, six splits: within 0.01 of the exact solve."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    net = wl.Serial(*NETWORKS[name], wl.Dense(1))
    kernels = net.kernel(digits.images[..., None].astype(np.float32) / 16)
    for kind, kernel in (("NNGP", kernels.nngp), ("NTK", kernels.ntk)):
        whole, rows = np.asarray(kernel), []
        for split in range(6):
            order = np.random.default_rng(split).permutation(len(whole))
            problem = LabelledKernel(
                whole[np.ix_(order, order[:1200])],
                digits.target[order[:1200]],
                digits.target[order[1200:]],
            )
            rows.append(compared(problem, name, kind, "digits", (4,)))
        gap = np.array([one["gap"] for run in rows for one in run if one["solver"] == "Nyström"])
        assert abs(gap.mean()) < 0.01
        assert gap.std(ddof=1) / np.sqrt(len(gap)) < 0.003  # or the line above would say nothing
