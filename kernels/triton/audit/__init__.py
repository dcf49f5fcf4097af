"""The offline audit: every shipped kernel compiled for every target, beside the plain kernel it replaces."""

from wnfused.kernels.triton.audit.entries import Entry, audit

__all__ = ["Entry", "audit"]
