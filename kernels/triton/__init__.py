"""The Triton kernels, their launches (``run_*``), tiles, the rule that picks one, the tuner and the offline audit."""
