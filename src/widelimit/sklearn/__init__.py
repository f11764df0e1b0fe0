"""scikit-learn's language: estimators with fit, predict and score, and a kernel object."""
