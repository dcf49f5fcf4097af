"""An emulator of the PTX that triton emits for sm_80: runs kernels on host tensors, and fails where a GPU would not."""
