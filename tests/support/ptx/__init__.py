"""An emulator of the PTX that triton emits for sm_80: kernels run on host tensors, and what no GPU would report fails."""
