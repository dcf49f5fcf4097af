"""Experiments: the effect of initialization and fusing on whole networks."""
