"""The offline audit: compiles every shipped kernel for every target and compares it with the plain kernel."""

from wnfused.kernels.triton.audit.entries import Entry, audit

__all__ = ["Entry", "audit"]
