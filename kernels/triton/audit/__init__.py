"""The offline audit: every shipped kernel compiled for every target, beside the plain kernel it replaces."""

from wnfused.kernels.triton.audit.entries import Row, audit

__all__ = ["Row", "audit"]
