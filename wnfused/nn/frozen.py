"""``frozen``: a context that caches the folded weights between calls until a parameter changes."""

import threading
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from wnfused import checks, functional
from wnfused.nn.base import WeightNormalized

_lock = threading.Lock()


class FrozenWeight:
    """The folded weight of one frozen layer, and the versions of the parameters it was computed from."""

    __slots__ = ("depth", "g", "g_address", "g_version", "v", "v_address", "v_version", "weight")

    def __init__(self) -> None:
        self.depth = 0  # number of active contexts that contain the layer
        self.forget()

    def forget(self) -> None:
        self.v: Any = None
        self.g: Any = None
        self.weight: Tensor | None = None

    def weight_and_bias(self, layer: WeightNormalized) -> tuple[Tensor, Tensor | None] | None:
        """The plain layer's weight and bias, folded again after a change; None to compute as usual.

        It is None where the parameters need gradients, and under ``torch.compile``, whose graph would hold the folded
        weight after the context has ended. This runs on every call of every layer: keep it short.
        """
        if torch.compiler.is_compiling():
            return None
        parameters: dict[str, Any] = layer._parameters  # nn.Module.__getattr__ takes 10 times as long
        v, g = parameters.get("weight_v"), parameters.get("weight_g")
        if torch.is_grad_enabled() and self._needs_gradient(v, g):
            return None
        weight = self.weight
        if (
            weight is None
            or v is not self.v
            or g is not self.g
            or v._version != self.v_version
            or g._version != self.g_version
            or v.data_ptr() != self.v_address  # `parameter.data = ...` does not increment the version
            or g.data_ptr() != self.g_address
        ):
            weight = self._fold(layer, v, g)
            if weight is None:
                return None
        try:
            return weight, parameters["bias"]
        except KeyError:  # pruned: the bias is a plain attribute
            return weight, layer.bias

    def _needs_gradient(self, v: Tensor | None, g: Tensor | None) -> bool:
        if v is None or g is None or v.requires_grad or g.requires_grad:
            return True
        if self.weight is not None and self.weight.requires_grad:
            self.forget()  # folded while they required one: it would accumulate its own gradient
        return False

    def _fold(self, layer: WeightNormalized, v: Tensor | None, g: Tensor | None) -> Tensor | None:
        self.forget()
        if not isinstance(v, nn.Parameter) or not isinstance(g, nn.Parameter):
            return None  # tensors put there by torch.func or pruning may change undetected
        if v.is_inference() or g.is_inference():
            return None  # inference tensors have no version
        with torch.inference_mode(False), torch.no_grad():  # autograd cannot save an inference tensor for x's gradient
            weight = functional.weight_norm(v, g, layer.dim, layer.eps)
        # Autocast caches 16-bit copies only of leaves that require a gradient, as the plain layer's weight does.
        weight.requires_grad_(v.requires_grad or g.requires_grad)
        self.g, self.g_version, self.g_address = g, g._version, g.data_ptr()
        self.v, self.v_version, self.v_address = v, v._version, v.data_ptr()
        self.weight = weight
        return weight


class frozen(ContextDecorator):  # noqa: N801 - reads as a function: `with wnfused.frozen(model):`
    """A context for running ``model`` while its parameters do not change: validation, rollouts, serving.

    The weight-normalized layers fold their weight at the first call and then cost as much as the plain layer.
    The folded weights are dropped when the context ends. Contexts may be nested and share layers.

    A layer whose ``weight_g`` or ``weight_v`` requires a gradient computes as usual while gradients are enabled, so
    use ``torch.no_grad()`` as well. An optimizer step, ``load_state_dict``, ``.to()`` and any other write that
    increments a parameter's version makes the layer fold again; only writes into ``parameter.data`` go undetected.
    """

    def __init__(self, model: nn.Module) -> None:
        checks.module("frozen", model)
        self._model = model
        self._held: list[list[WeightNormalized]] = []  # the layers, once for each time the context was entered

    def __enter__(self) -> nn.Module:
        layers = [module for module in self._model.modules() if isinstance(module, WeightNormalized)]
        with _lock:
            for layer in layers:
                if layer._frozen is None:
                    layer._frozen = FrozenWeight()
                layer._frozen.depth += 1
            self._held.append(layers)
        return self._model

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            for layer in self._held.pop():
                state = layer.__dict__.get("_frozen")
                if state is None:  # wnfused.fold ran inside the context: a plain torch.nn layer now
                    continue
                state.depth -= 1
                if state.depth == 0:
                    del layer.__dict__["_frozen"]
