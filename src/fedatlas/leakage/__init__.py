"""What a party could have learnt: attacks on recorded views, each in a child without data, scored beside its placebo."""

from fedatlas.leakage.attack_run import attack, carried_out, cell

__all__ = ["attack", "carried_out", "cell"]
