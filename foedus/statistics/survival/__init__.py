"""Survival from sums: Cox's model with risk sets by site or in common, curves, and parametric models."""
