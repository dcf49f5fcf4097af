"""Experiments: what initialization and fusing are worth, shown on whole networks."""
