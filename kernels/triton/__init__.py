"""The Triton kernels, their launches (``run_*``), tiles, the rule that selects one, the tuner and the offline audit."""
