"""Triton kernels: their place is kept; they come with the triton backend."""
