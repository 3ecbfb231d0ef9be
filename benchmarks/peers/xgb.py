"""XGBoost as a second opinion: ``python xgb.py GIVEN.npz TAKEN.npy KEYS``, with an interpreter that has it.

GIVEN holds x and y to train on and the rows ``test``, TAKEN their outputs: log-odds, numbers, or of three or more classes a margin for
each. It starts where fedatlas starts, at 0, and limits no leaf by its curvature; 256 bins keep whole numbers up to 255 apart.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import xgboost


def main() -> None:
    """Trains and writes."""
    given, taken, keys = np.load(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    classes, several = keys["task"] == "classes", keys.get("classes", 2) > 2
    settings = {
        "objective": "binary:logistic" if classes else "reg:squarederror",
        "base_score": 0.5 if classes else 0.0,
        "tree_method": "hist",
        "max_bin": 256,
        "max_depth": keys["depth"],
        "eta": keys["rate"],
        "lambda": keys["l2"],
        "min_child_weight": 0,
        "nthread": 1,
    }
    if several:
        settings |= {"objective": "multi:softprob", "num_class": keys["classes"]}
        settings |= {"multi_strategy": "multi_output_tree"} if keys["one_tree"] else {}
    rows = xgboost.DMatrix(given["x"], given["y"])
    made = xgboost.train(settings, rows, keys["trees"])
    np.save(taken, made.predict(xgboost.DMatrix(given["test"]), output_margin=True).astype(np.float64))


main()
