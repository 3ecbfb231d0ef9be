"""Published experiments, run as written, and published figures beside obtained ones, gate by gate."""

from fedatlas.experiment.reproduce.blog import blog
from fedatlas.experiment.reproduce.istat import istat_strategies
from fedatlas.experiment.reproduce.study import EXPERIMENTS, reproduce

__all__ = ["EXPERIMENTS", "blog", "istat_strategies", "reproduce"]
