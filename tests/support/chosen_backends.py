"""The backends that the operators' tests run on: those of the CPU, or the one that WNFUSED_BACKEND names."""

import os

# Where WNFUSED_BACKEND=torch chose from the start, nothing loads the native library, and with it the C++ autograd that
# otherwise serves CPU tensors under either backend: tests/ops/backends/test_choice.py runs tests in such a process.
CHOSEN = os.environ.get("WNFUSED_BACKEND")
BACKENDS = [CHOSEN] if CHOSEN in ("torch", "triton") else ["native", "torch"]
# What takes turns with the native backend, where tensors pass from one to another.
OTHER = "triton" if CHOSEN == "triton" else "torch"
