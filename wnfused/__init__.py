"""Weight normalization that costs what a plain layer costs."""

from wnfused import functional
from wnfused.ops.backends import BackendUnavailable, backend

__version__ = "0.1.0"
__all__ = ["BackendUnavailable", "backend", "functional"]
