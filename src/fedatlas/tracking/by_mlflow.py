"""MLflow: one run per experiment; several seeds are a parent run with one child each.

Uses its client, without global state.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedatlas.tracking.tracker import Beginning, Ended, Tracker

PARENT = "mlflow.parentRunId"
FOLDER = "mlruns"  # without a server: mlflow-skinny cannot open a database
MOST = 100  # parameters in one call
STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MlflowRun:
    """A run at MLflow."""

    def __init__(self, client: Any, id: str) -> None:
        self.client, self.id = client, id

    def parameters(self, values: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        given = [Param(key, value) for key, value in values.items()]
        for first in range(0, len(given), MOST):
            self.client.log_batch(self.id, params=given[first : first + MOST])

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.id, metrics=[Metric(key, value, now, step) for key, value in values.items()])

    def artefact(self, file: Path) -> None:
        self.client.log_artifact(self.id, str(file))

    def end(self, how: Ended) -> None:
        self.client.set_terminated(self.id, STATUS[how])


def begin(asked: Beginning) -> MlflowRun:
    """Begin a run, or continue the one with that id. An unreachable server costs seconds, not minutes."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    to = asked.how.to or os.environ.get("MLFLOW_TRACKING_URI") or FOLDER
    if urlsplit(to).scheme in {"", "file"}:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=to)
    if asked.before:
        client.update_run(asked.before, status="RUNNING")
        return MlflowRun(client, asked.before)
    found = client.get_experiment_by_name(asked.how.project)
    experiment = found.experiment_id if found else client.create_experiment(asked.how.project)
    tags = {PARENT: asked.parent} if asked.parent else {}
    return MlflowRun(client, client.create_run(experiment, run_name=asked.name, tags=tags).info.run_id)


MLFLOW = Tracker("mlflow", begin)
