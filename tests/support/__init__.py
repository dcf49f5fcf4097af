"""Shared by several tests: references, samples, cases, and scripts that run in separate processes."""
