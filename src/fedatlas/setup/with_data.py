"""Read the data of an experiment of either kind, and refuse what does not suit them."""

from __future__ import annotations

from fedatlas.setup.assembly import set_up
from fedatlas.setup.checked import Checked
from fedatlas.setup.consortium import consortium


def task_with_data(whole: Checked) -> str:
    """Return the kind of the target, "classes", "numbers" or "tokens". ConfigError or DataError if the data cannot be used."""
    return consortium(whole).holder.task if whole.columns else set_up(whole).dataset.task
