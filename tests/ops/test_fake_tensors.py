"""Tensors without data, fake and meta: shapes, strides and dtypes of results and gradients."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.support.compile_cases import network
from tests.support.samples import SAMPLES, Sample

pytestmark = pytest.mark.usefixtures("_one_thread", "_compiled_afresh")

each_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)


@each_sample
def test_fake_tensors(backend: str, sample: Sample) -> None:
    """Shapes, strides and dtypes of results and gradients, without data."""
    real = sample.tensors()
    y = sample.own(*real)
    gradients = torch.autograd.grad(y.sum(), real)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in real]
        fake_y = sample.own(*fake)
        fake_gradients = torch.autograd.grad(fake_y.sum(), fake)
    for a, b in zip([fake_y, *fake_gradients], [y, *gradients], strict=True):
        assert type(a).__name__ == "FakeTensor"
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


@each_sample
def test_meta_tensors(one_backend: None, sample: Sample) -> None:
    real = sample.tensors()
    y = sample.own(*real)
    gradients = torch.autograd.grad(y.sum(), real)
    meta = [t.detach().to("meta").requires_grad_() for t in real]
    meta_y = sample.own(*meta)
    for a, b in zip([meta_y, *torch.autograd.grad(meta_y.sum(), meta)], [y, *gradients], strict=True):
        assert a.device.type == "meta"
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


def test_meta_layers() -> None:
    with torch.device("meta"):
        model = network()
        y = model(torch.randn(4, 2, 4, 4))
    assert y.device.type == "meta"
    assert y.shape == (4, 3)
    assert all(p.device.type == "meta" for p in model.parameters())
