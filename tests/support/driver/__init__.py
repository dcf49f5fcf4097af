"""Pretend driver libraries, so that the C++ launch path runs on CPU tensors.

``fake`` launches nothing, ``compare`` checks its launches against triton's own launcher, and ``interpreted`` executes
them in triton's interpreter.
"""
