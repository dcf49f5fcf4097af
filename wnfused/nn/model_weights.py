"""``model_weights``: a context in which each call of a model computes all its normalized weights at once."""

import threading
from collections import defaultdict
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wnfused import checks, ops
from wnfused.nn.base import WeightNormalized

__all__ = ["model_weights"]

_saved_tensor_hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks


class _Mode(NamedTuple):
    """What the weights of a call depend on besides gain and direction."""

    thread: int
    grad: bool
    inference: bool
    hooks: tuple[Any, ...]  # of saved tensors: an activation checkpoint has its own


def _current_mode() -> _Mode:
    hooks = _saved_tensor_hooks(True)
    return _Mode(
        threading.get_ident(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), hooks if hooks else ()
    )


def _compute_dtype(v: Tensor) -> torch.dtype:
    """The dtype in which a plain layer with the weight v computes: under autocast, the one that v is cast to."""
    if torch._C._is_any_autocast_enabled() and v.dtype != torch.float64 and torch.is_autocast_enabled(v.device.type):
        return torch.get_autocast_dtype(v.device.type)
    return v.dtype


class WrittenWeight:
    """The normalized weight of one layer for the current call of its model, and what it was computed from."""

    __slots__ = ("g", "g_address", "g_version", "mode", "v", "v_address", "v_version", "weight")

    def __init__(self, weight: Tensor, v: Tensor, g: Tensor, mode: _Mode) -> None:
        self.weight, self.mode = weight, mode
        self.v, self.v_version, self.v_address = v, _version(v), v.data_ptr()
        self.g, self.g_version, self.g_address = g, _version(g), g.data_ptr()

    def weight_for(self, layer: WeightNormalized, input: Any) -> Tensor | None:
        """The weight, or None if the layer has to compute its own: gain, direction or mode differ from the model's.

        This runs on every call of every layer: keep it short.
        """
        parameters: dict[str, Any] = layer._parameters
        v, g, weight, mode = self.v, self.g, self.weight, self.mode
        if (
            parameters.get("weight_v") is not v
            or parameters.get("weight_g") is not g
            or _version(v) != self.v_version
            or _version(g) != self.g_version
            or v.data_ptr() != self.v_address  # `parameter.data = ...` does not increment the version
            or g.data_ptr() != self.g_address
            or torch.compiler.is_compiling()
        ):
            return None
        now = _current_mode()
        if now != mode and (now.grad or now._replace(grad=mode.grad) != mode):
            return None  # a weight with history may be used without gradients, but not the other way round
        if weight.dtype != _compute_dtype(v):
            return None  # autocast was switched on or off inside the model
        if type(input) is not Tensor or (input.dtype != weight.dtype and weight.dtype == v.dtype):
            return None  # the layer's own operator decides what it accepts
        return weight


def _version(t: Tensor) -> int:
    return -1 if t.is_inference() else t._version


class _Call:
    """The hooks of a model: before its forward all weights are computed, after it they are dropped."""

    def __init__(self, layers: list[WeightNormalized]) -> None:
        self.layers = layers

    def before(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return  # the compiler's graph has one operator per layer; so have the transforms of torch.func
        if torch._C._get_tracing_state() is not None or torch.autograd.forward_ad._current_level >= 0:
            return
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return  # a graph would not repeat what the host does; its replay costs no host time anyway
        for layers, v, g in _groups(self.layers):
            _write(layers, v, g)

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        self.drop()

    def drop(self) -> None:
        if torch.compiler.is_compiling():
            return
        thread = threading.get_ident()
        for layer in self.layers:
            written = layer.__dict__.get("_written")
            if written is not None and written.mode.thread == thread:  # else another thread's call has replaced it
                layer.__dict__.pop("_written", None)


_Layers = dict[tuple[int, int, int | None, float], list[WeightNormalized]]


def _groups(layers: list[WeightNormalized]) -> list[tuple[_Layers, list[Tensor], list[Tensor]]]:
    """The layers by device and dtypes; each group is one launch. Tied layers share one weight."""
    groups: dict[Any, tuple[_Layers, list[Tensor], list[Tensor]]] = defaultdict(lambda: ({}, [], []))
    grad = torch.is_grad_enabled()
    for layer in layers:
        parameters: dict[str, Any] = layer._parameters
        v, g = parameters.get("weight_v"), parameters.get("weight_g")
        if v is None or g is None or not _is_plain(v) or not _is_plain(g):
            continue  # pruned, parametrized, folded, sharded by FSDP, quantized
        if layer.__dict__.get("_frozen") is not None and not (grad and (v.requires_grad or g.requires_grad)):
            continue  # wnfused.frozen keeps its weight between calls
        alike, vs, gs = groups[v.device, v.dtype, g.dtype]
        key = (id(v), id(g), layer.dim, layer.eps)
        if key in alike:
            alike[key].append(layer)
        else:
            alike[key] = [layer]
            vs.append(v)
            gs.append(g)
    return list(groups.values())


def _is_plain(t: Tensor) -> bool:
    return type(t) in (nn.Parameter, Tensor) and t.device.type != "meta" and t.layout == torch.strided


def _write(layers: _Layers, v: list[Tensor], g: list[Tensor]) -> None:
    """Compute the weights of these layers with one operator and hand them to the layers."""
    mode = _current_mode()
    dims = [-1 if dim is None else dim for _, _, dim, _ in layers]
    weights, _ = ops.model_weights(v, g, dims, [eps for *_, eps in layers], _compute_dtype(v[0]))
    for tied, weight, v_one, g_one in zip(layers.values(), weights, v, g, strict=True):
        written = WrittenWeight(weight, v_one, g_one, mode)
        for layer in tied:
            layer.__dict__["_written"] = written  # nn.Module.__setattr__ takes ten times as long


def _nothing(*args: Any) -> None:
    """What a hook becomes in a copy of the model: the copy is not part of the context."""


def _unpickled() -> Any:
    return _nothing


class _Hook:
    """A method of ``_Call`` that is not copied with the model."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def __call__(self, *args: Any) -> None:
        self.run(*args)

    def __deepcopy__(self, memo: Any) -> Any:
        return _nothing

    def __reduce__(self) -> Any:
        return _unpickled, ()


class model_weights(ContextDecorator):  # noqa: N801 - reads as a function: `with wnfused.model_weights(model):`
    """A context in which each call of ``model`` computes the normalized weights of all its layers at once.

    One operator, on a GPU one launch, writes all weights before the model's forward, in the dtype the layers compute
    in; under autocast that replaces the cast a plain layer pays. The layers then run as plain layers (cuBLAS, cuDNN,
    oneDNN), and the gradients of gains and directions come from one launch per 25 MB of weights. This suits networks
    whose products the libraries compute best. Where the host's time decides, the layers' own operators cost less.

    The context may span one step or a whole training run: the weights are computed in each call of ``model`` and
    dropped at its end, so whatever changes a parameter between two calls is seen. Calls of submodules alone compute as
    usual, and so does every layer for which the model's weights do not hold: its gain or direction was modified during
    the call, it runs in an activation checkpoint, under another autocast or gradient mode than the model, it is pruned,
    parametrized or sharded, or its class reads ``self.weight`` in a forward of its own. Only a model that writes into
    ``parameter.data`` in its own forward must not be used here. Under ``torch.compile``, the transforms
    of ``torch.func`` and CUDA graph capture the context has no effect.
    """

    def __init__(self, model: nn.Module) -> None:
        checks.module("model_weights", model)
        self._model = model
        self._entered: list[tuple[_Call, Any, Any] | None] = []  # once for each time the context was entered

    def __enter__(self) -> nn.Module:
        if any(isinstance(hook, _Hook) for hook in self._model._forward_pre_hooks.values()):
            self._entered.append(None)  # inside another context of this model, whose weights are used
            return self._model
        call = _Call([module for module in self._model.modules() if isinstance(module, WeightNormalized)])
        before = self._model.register_forward_pre_hook(_Hook(call.before))
        after = self._model.register_forward_hook(_Hook(call.after), always_call=True)
        self._entered.append((call, before, after))
        return self._model

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered = self._entered.pop()
        if entered is not None:
            call, *handles = entered
            for handle in handles:
                handle.remove()
            call.drop()  # torch calls no hook after a KeyboardInterrupt
