"""The weights of a whole model and their gradients on the emulator: launches that read tables of addresses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.reference import TOLERANCE, errors
from wnfused.ops import reference as formulas
from wnfused.ops.backends import triton as triton_backend

from .launch import POISONS, Conditions, Launches, emulated
from .layers import DTYPES, placed

Tensors = Sequence[Tensor]
KERNELS = ("write_model_weights", "project_model_weights")


@dataclass(frozen=True)
class Weight:
    """One of a model's; ``offset`` and ``last`` as in ``layers.Layer``. A gradient may not be wanted."""

    shape: tuple[int, ...]
    dim: int = 0  # -1: one norm over the whole weight
    eps: float = 0.0
    offset: int = 0
    last: bool = False
    scale: float = 1.0
    want_v: bool = True
    want_g: bool = True


@dataclass(frozen=True)
class Model:
    weights: tuple[Weight, ...]
    weight: str = "fp32"  # dtype of gains and directions
    compute: str = "fp32"  # and that the layers compute in


# Rows that are aligned, contiguous but not aligned (by length, by address), interleaved closely and far apart; of one
# row, of one element, longer than a program's step, in channels-last memory; extreme and zero ones.
_WEIGHTS = (
    Weight((9, 16)), Weight((7, 5), eps=0.1), Weight((6, 528), want_v=False), Weight((5, 32), offset=1),
    Weight((60, 3), 1, want_g=False), Weight((3, 70, 2), 1, eps=1e-3), Weight((2, 5, 24), 1),
    Weight((2, 3, 40), 1, offset=2), Weight((5, 6), -1, eps=0.5), Weight((48, 24), -1), Weight((1, 9)), Weight((6, 1)),
    Weight((8, 16, 3, 3), last=True), Weight((4, 8, 2, 2), 1, last=True), Weight((4, 33), scale=1e-30),
    Weight((70, 4), 1, scale=1e25), Weight((3, 40), scale=0.0),
)  # fmt: skip
MODELS = (
    Model(_WEIGHTS),
    Model(_WEIGHTS, compute="bf16"),
    Model(_WEIGHTS[:14], compute="fp16"),
    Model(_WEIGHTS, "bf16", "bf16"),
    Model(_WEIGHTS, "fp64", "fp64"),
)
FAULTY = Model((Weight((5, 24)), Weight((7, 5)), Weight((19, 3), 1)), compute="bf16")  # one of each memory layout


_ATEN = torch.ops.aten
_ALLOCATING = (_ATEN.empty_like.default, _ATEN.empty.memory_format, _ATEN.clone.default)


class _Lending(TorchDispatchMode):
    """Lends the tensors that are allocated inside, whose addresses the launches may find in a table."""

    def __init__(self, lent: dict[str, Tensor]) -> None:
        super().__init__()
        self.lent = lent

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in _ALLOCATING and result.numel():
            self.lent[f"allocated {len(self.lent)}"] = result
        return result


def tensors_of(model: Model) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """v, g and dw of every weight."""
    numbers = torch.Generator().manual_seed(9)
    v, g, dw = [], [], []
    for w in model.weights:

        def random_(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, generator=numbers, dtype=torch.float64)

        direction = random_(w.shape)
        v.append(placed((direction * w.scale).to(DTYPES[model.weight]), w.offset, last=w.last))
        g.append((random_(formulas.gain_shape(w.shape, None if w.dim < 0 else w.dim)).abs() + 0.5).to(v[-1].dtype))
        # Leaning towards v: dg is then no sum of terms that cancel.
        dw.append(placed((random_(w.shape) + direction).to(DTYPES[model.compute]), w.offset, last=w.last))
    return v, g, dw


def run(model: Model, conditions: Conditions, record: bool = False) -> tuple[dict[str, Tensor], Launches]:
    """Results by name, and what was launched."""
    v, g, dw = tensors_of(model)
    dims, eps = [w.dim for w in model.weights], [w.eps for w in model.weights]
    with emulated(conditions, record) as launches:
        for name, tensors in (("v", v), ("g", g), ("dw", dw)):
            launches.lent.update({f"{name} {i}": t for i, t in enumerate(tensors)})
        with _Lending(launches.lent):
            w, norms = triton_backend.model_weights(v, g, dims, eps, DTYPES[model.compute])
            wanted = [one.want_v for one in model.weights], [one.want_g for one in model.weights]
            dv, dg = triton_backend.model_weights_backward(dw, v, g, norms, dims, eps, *wanted)
    for t, was in zip((*v, *g, *dw), (t for ts in tensors_of(model) for t in ts), strict=True):
        assert torch.equal(t, was), "an input was written to"
    own = norms.split([t.numel() for t in g])
    return _named(model, w, own, dv, dg), launches


def _named(model: Model, w: Tensors, norms: Tensors, dv: Tensors, dg: Tensors) -> dict[str, Tensor]:
    """``dv`` and ``dg`` are lists of the wanted ones."""
    every = range(len(model.weights))
    with_v = [i for i in every if model.weights[i].want_v]
    with_g = [i for i in every if model.weights[i].want_g]
    lists = (("w", every, w), ("norms", every, norms), ("dv", with_v, dv), ("dg", with_g, dg))
    return {f"{name} {i}": t for name, which, ts in lists for i, t in zip(which, ts, strict=True)}


def expected(model: Model) -> dict[str, Tensor]:
    """The same in float64, and the gradients that are not wanted."""
    v, g, dw = ([t.double() for t in ts] for ts in tensors_of(model))
    dims, eps = [w.dim for w in model.weights], [w.eps for w in model.weights]
    every = [True] * len(v)
    w, norms = formulas.model_weights(v, g, dims, eps, torch.float64)
    dv, dg = formulas.model_weights_backward(dw, v, g, None, dims, eps, every, every)
    asking = replace(model, weights=tuple(replace(one, want_v=True, want_g=True) for one in model.weights))
    return _named(asking, w, norms.split([t.numel() for t in g]), dv, dg)


def check(model: Model) -> set[str]:
    """As ``layers.check``: right results, the same bits in another order and with another poison. Its opcodes."""
    found, launches = run(model, Conditions(0, POISONS[0]))
    again, _ = run(model, Conditions(1, POISONS[1]))
    assert launches.kernels == [*KERNELS] and not launches.conflicting
    exact = expected(model)
    wide = max((DTYPES[model.weight], DTYPES[model.compute]), key=lambda dtype: TOLERANCE[dtype])
    said = []
    for name, t in found.items():
        if not torch.equal(t.reshape(-1).view(torch.uint8), again[name].reshape(-1).view(torch.uint8)):
            said.append(f"{name}: other bits in another order or with another poison")
        allowed = TOLERANCE[t.dtype if name.startswith("norms") else wide]
        largest, rms = errors(t, exact[name], _terms(model, exact, name))
        if t.shape != exact[name].shape or not (
            largest <= allowed[0] and rms <= (allowed[0] if t.numel() < 16 else allowed[1])
        ):
            said.append(
                f"{name}: {model.weights[int(name.split()[1])]}: errors {largest:.2e}, {rms:.2e}, allowed {allowed}"
            )
    assert not said, "\n".join(said)
    return launches.opcodes


def _terms(model: Model, exact: dict[str, Tensor], name: str) -> float:
    """dv = g/n (dw − c u): where the two cancel no result is closer than relative to them."""
    kind, i = name.split()
    if kind != "dv":
        return 0.0
    g = tensors_of(model)[1][int(i)].double().reshape(-1)
    return (g * exact[f"dg {i}"].reshape(-1) / exact[f"norms {i}"]).nan_to_num().abs().max().item()
