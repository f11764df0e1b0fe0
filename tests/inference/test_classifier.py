import numpy as np
import pytest
from inference.problems import WIDE, dense, examples
from sklearn.datasets import load_wine
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from widelimit.errors import NumericalError, ShapeError
from widelimit.inference import GP, Classifier


def wine():
    x, y = load_wine(return_X_y=True)
    names = np.array(["red", "rosé", "white"])[y]
    return train_test_split(StandardScaler().fit_transform(x), names, test_size=0.5, random_state=0)


def test_classes_and_calibrated_probabilities_on_real_data():
    x, test, labels, truth = wine()
    fitted = Classifier(GP(dense(), noise=0.01, engine=WIDE)).fit(x, labels)
    table = fitted.predict_proba(test)
    assert list(fitted.classes) == ["red", "rosé", "white"]
    np.testing.assert_allclose(table.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(fitted.predict(test), fitted.classes[table.argmax(axis=1)])
    assert np.mean(fitted.predict(test) == truth) > 0.95
    assert log_loss(truth, table) < 0.15
    # The temperature matters: taking the means for log-probabilities is much worse.
    raw = np.exp(fitted.process.mean(test))
    assert log_loss(truth, raw / raw.sum(axis=1, keepdims=True)) > 3 * log_loss(truth, table)
    found = fitted.reliability(test, truth, groups=5)
    assert found.expected_error < 0.1
    assert found.count.sum() == len(test)


def test_far_from_the_data_nothing_is_sure():
    x, _, labels, _ = wine()
    fitted = Classifier(GP(dense(), noise=0.01, engine=WIDE)).fit(x, labels)
    near = fitted.predict_proba(x).max(axis=1).mean()
    far = fitted.predict_proba(np.random.default_rng(0).normal(size=x.shape)).max(axis=1).mean()
    assert far < near


def test_unusable_labels_are_named():
    x, classifier = examples(6), Classifier(GP(dense(), engine=WIDE))
    with pytest.raises(NumericalError, match="at least two classes"):
        classifier.fit(x, np.ones(6))
    with pytest.raises(NumericalError, match="must be known"):
        classifier.fit(x, [0.0, 1.0, np.nan, 0.0, 1.0, 0.0])
    with pytest.raises(ShapeError, match="one row per example"):
        classifier.fit(x, [0, 1])
    fitted = classifier.fit(x, [0, 1, 0, 1, 0, 1])
    with pytest.raises(ShapeError, match="has seen"):
        fitted.reliability(x, [0, 1, 2, 0, 1, 0])
    with pytest.raises(NumericalError, match="one noise variance"):
        Classifier(GP(dense(), noise=np.ones(6)))
    with pytest.raises(NumericalError, match="one noise variance"):
        Classifier(dense())
