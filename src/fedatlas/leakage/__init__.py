"""Attacks on recorded views, each in a child process without data, scored and compared with its placebo."""

from fedatlas.leakage.attack_run import attack_view, attack_views, ensure_attack

__all__ = ["attack_view", "attack_views", "ensure_attack"]
