"""Randomised response of classes and categories of training rows (P4), with exact probabilities."""
