"""The norms of activations and of their gradients, layer by layer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wnfused import checks
from wnfused.diagnostics import plots
from wnfused.formatting import aligned
from wnfused.model_io import arguments, does_not_run, tensors_in
from wnfused.ops.backends import BackendUnavailable
from wnfused.unchanged import unchanged


@dataclass(frozen=True)
class LayerSignal:
    """Norms at the output of one module, relative to the model's input and to the gradient at its output."""

    name: str  # the module's name, with " #2" and so on for later calls
    shape: tuple[int, ...]  # of the output for one sample
    forward_mean: float  # of ‖h‖ / ‖x‖ over the samples
    forward_std: float
    backward_mean: float  # of ‖∂ℓ/∂h‖ / ‖∂ℓ/∂y‖; NaN if the output has no gradient
    backward_std: float


@dataclass(frozen=True)
class SignalReport:
    layers: tuple[LayerSignal, ...]  # in execution order

    def table(self) -> str:
        """The report as aligned text of at most 80 columns."""

        def cell(mean: float, std: float) -> str:
            return f"{mean:>9.3g} ± {std:<7.2g}"

        header = ("layer", f"{'‖h‖/‖x‖':>19}", f"{'‖dh‖/‖dy‖':>19}")
        rows = [
            (s.name, cell(s.forward_mean, s.forward_std), cell(s.backward_mean, s.backward_std)) for s in self.layers
        ]
        return "\n".join(aligned(header, rows))

    def __str__(self) -> str:
        return self.table()

    def plot(self, path: str | Path) -> Path:
        """Plot mean and standard deviation over depth to ``path``; its suffix selects PNG, PDF or SVG."""
        forward = [(s.forward_mean, s.forward_std) for s in self.layers]
        backward = [(s.backward_mean, s.backward_std) for s in self.layers]
        return plots.signal(forward, backward, Path(path))


def signal_report(
    model: nn.Module,
    x: Any,
    *,
    loss_fn: Callable[[Any], Tensor] | None = None,
    modules: Sequence[str] | None = None,
    generator: torch.Generator | None = None,
) -> SignalReport:
    """Measure the norms of activations and their gradients at the output of every layer, or of the named ``modules``.

    ``x`` is the model's input: a tensor, a tuple of arguments or a dict of keyword arguments. The first dimension of
    each tensor is the batch. Norms are computed per sample; several inputs or outputs count as one vector. Integers,
    such as tokens, have no norm: if all inputs are integers, norms are relative to the first layer's output.
    ``loss_fn`` takes the model's output; by default the gradient at the output is random, one normal vector per sample.
    The model runs in its current mode. The model, its gradients and its buffers are not changed.
    """
    checks.module("signal_report", model)
    watched = _watched(model, modules)
    args, kwargs = arguments(x)
    inputs = list(tensors_in((args, kwargs)))
    samples = _samples(x, inputs)
    signals = [t for t in inputs if t.is_floating_point() and t.shape[:1] == (samples,)]
    args, kwargs = _with_gradient(args), _with_gradient(kwargs)
    with unchanged(model), _recording(watched, samples) as records, torch.enable_grad():
        try:
            result = model(*args, **kwargs)
        except BackendUnavailable:
            raise
        except Exception as error:
            raise ValueError(f"signal_report: {does_not_run('x', x, error)}") from error
        outputs = [t for t in tensors_in(result) if t.is_floating_point() and t.shape[:1] == (samples,)]
        if not outputs:
            raise ValueError(f"signal_report: model: expected an output for each of {samples} samples, got none")
        errors = _backward(result, outputs, loss_fn, generator)
    if not records:
        raise ValueError("signal_report: modules: none of them has an output for each sample of x")
    input_norms = _norms(*signals) if signals else records[0].forward
    return SignalReport(tuple(record.signal(input_norms, _norms(*errors)) for record in records))


def _samples(x: Any, tensors: list[Tensor]) -> int:
    if not tensors or tensors[0].ndim < 1 + tensors[0].is_floating_point() or len(tensors[0]) == 0:
        got = f"shape {tuple(tensors[0].shape)}" if tensors else type(x).__name__
        raise ValueError(f"signal_report: x: expected a batch of at least one sample, got {got}")
    return len(tensors[0])


def _with_gradient(value: Any) -> Any:
    """Make the tensors require gradients as non-leaf tensors, because a model may write into its input."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.requires_grad_().clone()
    if isinstance(value, tuple):
        return tuple(map(_with_gradient, value))
    return {key: _with_gradient(item) for key, item in value.items()} if isinstance(value, dict) else value


def _watched(model: nn.Module, names: Sequence[str] | None) -> dict[str, nn.Module]:
    every = dict(model.named_modules(remove_duplicate=names is None))
    if names is None:
        return {
            name or "(model)": m for name, m in every.items() if _is_leaf(m) and ".parametrizations." not in f".{name}."
        }
    unknown = [name for name in names if name not in every]
    if unknown:
        raise ValueError(f"signal_report: modules: the model has no module named {unknown[0]!r}")
    return {name: every[name] for name in names}


def _is_leaf(module: nn.Module) -> bool:
    """Whether the module has no submodules, apart from those of torch's parametrizations."""
    return all(name == "parametrizations" for name, _ in module.named_children())


def _norms(*tensors: Tensor) -> Tensor:
    """One norm per sample, over all tensors."""
    return torch.stack([t.detach().reshape(len(t), -1).double().norm(dim=1) for t in tensors]).norm(dim=0)


def _backward(
    result: Any, outputs: list[Tensor], loss_fn: Callable[[Any], Tensor] | None, generator: torch.Generator | None
) -> list[Tensor]:
    """Run backward from a random gradient, or from the loss; returns the gradient at each output."""
    if loss_fn is None:
        errors = [torch.randn(y.shape, generator=generator, device=y.device).to(y.dtype) for y in outputs]
        pairs = [pair for pair in zip(outputs, errors, strict=True) if pair[0].requires_grad]
        torch.autograd.backward([y for y, _ in pairs], [error for _, error in pairs])
        return errors
    loss = loss_fn(result)
    gradients = torch.autograd.grad(loss, outputs, retain_graph=True, allow_unused=True)
    torch.autograd.backward(loss)
    return [torch.zeros_like(y) if g is None else g for y, g in zip(outputs, gradients, strict=True)]


@dataclass
class _Record:
    name: str
    shape: tuple[int, ...]
    forward: Tensor
    backward: Tensor | None = None

    def signal(self, x: Tensor, error: Tensor) -> LayerSignal:
        forward = self.forward / x
        backward = self.backward / error if self.backward is not None else torch.tensor([float("nan")])
        return LayerSignal(self.name, self.shape, *_mean_and_std(forward), *_mean_and_std(backward))


def _mean_and_std(values: Tensor) -> tuple[float, float]:
    return values.mean().item(), values.std(correction=0).item()


@contextmanager
def _recording(watched: dict[str, nn.Module], samples: int) -> Iterator[list[_Record]]:
    """Record every call of the watched modules whose output is a batch of ``samples``."""
    records: list[_Record] = []
    calls: dict[str, int] = {}

    def hook_for(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(module: nn.Module, args: object, output: object) -> None:
            if not isinstance(output, Tensor) or not output.is_floating_point() or output.shape[:1] != (samples,):
                return
            calls[name] = calls.get(name, 0) + 1
            label = name if calls[name] == 1 else f"{name} #{calls[name]}"
            record = _Record(label, tuple(output.shape[1:]), _norms(output))
            records.append(record)
            if output.requires_grad:  # the hook stays with this value even if an in-place operation follows
                output.register_hook(  # type: ignore[no-untyped-call]
                    lambda gradient: setattr(record, "backward", _norms(gradient))
                )

        return hook

    handles = [module.register_forward_hook(hook_for(name)) for name, module in watched.items()]
    try:
        yield records
    finally:
        for handle in handles:
            handle.remove()
