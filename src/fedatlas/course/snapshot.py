"""The state between two rounds of a run whose clients hold rows: its models and their quality."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedatlas.algorithm import State
from fedatlas.course.client_models import models_of, used_by
from fedatlas.course.evaluation import Evaluator
from fedatlas.federation.host import Host
from fedatlas.model import Model
from fedatlas.setup.assembly import Setup
from fedatlas.setup.torch_model import Networks


class Snapshot(NamedTuple):
    """The state of a run after a round, and its evaluator."""

    setup: Setup
    federation: Host
    evaluator: Evaluator
    networks: Networks
    number: int  # rounds that have landed
    server: State

    def models(self) -> dict[str, Model]:
        """Map each name to the model that is evaluated and saved."""
        return models_of(self.setup.algorithm, self.server, self.networks)

    def client_model(self, client: int) -> Model:
        """Return the model that a client would use: its personal one if the algorithm has them, else the shared one."""
        own, facts = self.setup.bench.architecture(client), self.federation.facts(client, self.number, 0.0)
        state_of = lambda message: self.federation.state_of(client, message, facts)  # noqa: E731
        return used_by(client, self.setup.algorithm, self.server, state_of, self.networks, own)

    def attackers(self) -> dict[int, int]:
        """Map malicious clients to the number of their table in ``[[attack]]``."""
        groups = self.setup.algorithm.groups
        return self.setup.cast.attackers(groups(self.server) if groups is not None else None)

    def quality(self) -> dict[str, Any]:
        """Return the quality fields of a row."""
        every = list(self.models().items())
        personal = self.setup.personal
        row = self.evaluator.personal_row(self.client_model) if personal else self.evaluator.row(every[0][1])
        others = every if self.setup.mixed else every[1:]
        if others and self.evaluator.several:
            row["models"] = {name: self.evaluator.plain_row(model) for name, model in others}
        return row
