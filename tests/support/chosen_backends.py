"""The backends for the tests of the operators: those of the CPU, or the one that WNFUSED_BACKEND names."""

import os

# In a process started with WNFUSED_BACKEND=torch the native library is never loaded, nor its C++ autograd, which
# otherwise handles CPU tensors on both backends: tests/ops/backends/test_choice.py runs tests in such a process.
CHOSEN = os.environ.get("WNFUSED_BACKEND")
BACKENDS = [CHOSEN] if CHOSEN in ("torch", "triton") else ["native", "torch"]
# The backends that alternate with the native one in tests that mix backends.
OTHER = "triton" if CHOSEN == "triton" else "torch"
