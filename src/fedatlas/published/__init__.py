"""Published experiments, run as written, and published figures beside obtained ones, gate by gate."""

from fedatlas.published.reproduction import EXPERIMENTS, reproduce
from fedatlas.published.t1_blog import blog
from fedatlas.published.t2_istat import istat_strategies

__all__ = ["EXPERIMENTS", "blog", "istat_strategies", "reproduce"]
