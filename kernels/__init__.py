"""The kernels, imported as ``wnfused.kernels``: they know tensors and shapes, not autograd and not ``nn.Module``."""
