"""Federations as scikit-learn estimators: of owners of rows (rows.py), and of parties that hold columns (columns.py)."""

from fedatlas.estimators.rows import FederatedClassifier, FederatedRegressor

__all__ = ["FederatedClassifier", "FederatedRegressor"]
