"""Published experiments, run as written, and published figures compared with obtained ones, gate by gate."""

from fedatlas.published.reproduction import EXPERIMENTS, reproduce

__all__ = ["EXPERIMENTS", "reproduce"]
