"""What all weight-normalized layers share: parameters, the computed ``weight``, and loading of state dicts."""

import math
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from wnfused import checks, functional
from wnfused.nn.lost_writes import computed
from wnfused.nn.plain import fold_layer, folded_weight
from wnfused.nn.torch_hooks import mark
from wnfused.nn.torch_parametrizations import LayerType, Parametrizations
from wnfused.ops.reference import gain_shape, opmath, row_norms

if TYPE_CHECKING:
    from wnfused.nn.frozen import FrozenWeight
    from wnfused.nn.model_weights import WrittenWeight

# How torch's two weight norms name gain and direction in a state dict. The layers here use the names of "hook".
SPELLINGS = {
    "hook": ("weight_g", "weight_v"),
    "parametrizations": ("parametrizations.weight.original0", "parametrizations.weight.original1"),
}


def gain_of(v: Tensor, dim: int | None, eps: float = 0.0) -> Tensor:
    """The gain that makes the normalized weight equal v: the norms of v, bitwise as torch's weight norm computes them.

    Where the squares overflow or underflow, torch's norms are wrong, and the operators' own norms replace them.
    """
    v = v.detach()
    if v.numel() == 0:
        return v.new_zeros(gain_shape(tuple(v.shape), dim))
    norms = torch.norm_except_dim(v, 2, -1 if dim is None else dim)
    limits = torch.finfo(opmath(v.dtype))
    safe = (norms > limits.tiny**0.5 / limits.eps) & (norms < limits.max**0.5 * limits.eps)
    norms = torch.where(safe, norms, row_norms(v, dim).to(v.dtype))
    return norms if eps == 0 else torch.hypot(norms, torch.full_like(norms, math.sqrt(eps)))


class WeightNormalized(nn.Module, metaclass=LayerType):
    """Base class of the layers: the ``torch.nn`` layer ``twin`` with a weight computed from gain and direction.

    Like torch's own parametrized layers, each layer is a subclass of its twin, so code that checks
    ``isinstance(m, nn.Conv1d)``, or that reads or sets ``kernel_size`` or ``padding``, keeps working. Parameters are
    registered in the order of both of torch's weight norms (bias, gain, direction), so optimizer states fit as well.
    """

    twin: ClassVar[type[nn.Module]]
    user_class: ClassVar[type[nn.Module] | None] = None  # of a converted subclass of the twin
    weight_g: nn.Parameter
    weight_v: nn.Parameter
    bias: Any  # a Parameter or None; torch's declarations differ between twins
    activation: str | None
    dim: int | None
    eps: float
    _frozen: "FrozenWeight | None" = None  # set by wnfused.frozen, and only while it is active
    _written: "WrittenWeight | None" = None  # set by wnfused.model_weights, and only during a call of the model

    def _take_over(self, plain: nn.Module, activation: str | None, dim: int | None, eps: float) -> None:
        """Take over the state of the newly built twin ``plain``: its geometry, random weights and defaults."""
        where = type(self).__name__
        v = plain._parameters.pop("weight")
        assert v is not None
        if dim is not None:
            checks.dimension(where, v.ndim, dim)
        checks.epsilon(where, eps)
        checks.activation(where, activation)
        self.__dict__.update(plain.__dict__)
        become(self, type(self), nn.Parameter(gain_of(v, dim, eps)), v, dim, eps, activation)

    def forward(self, input: Tensor) -> Tensor:
        return self._forward(input)

    def _forward(self, input: Tensor, *more: Any) -> Tensor:
        """One operator of input, gain and direction; the plain layer where a whole-model context has the weight."""
        frozen = self._frozen
        if frozen is not None and (plain := frozen.weight_and_bias(self)) is not None:
            y = self._plain(input, *plain, *more)
            return y if self.activation is None else y.relu_()
        written = self._written
        if written is not None and (weight := written.weight_for(self, input)) is not None:
            y = self._plain(input, weight, self.bias, *more)
            return y if self.activation is None else y.relu_()
        parameters: dict[str, Any] = self._parameters  # nn.Module.__getattr__ takes 10 times as long
        try:
            v, g, bias = parameters["weight_v"], parameters["weight_g"], parameters["bias"]
        except KeyError:  # pruned or parametrized
            v, g, bias = self.weight_v, self.weight_g, self.bias
        return self._fused(input, v, g, bias, *more)

    def _plain(self, input: Tensor, weight: Tensor, bias: Tensor | None, *more: Any) -> Tensor:
        """What the twin computes with this weight."""
        raise NotImplementedError

    def _fused(self, input: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, *more: Any) -> Tensor:
        """The public function of this layer."""
        raise NotImplementedError

    @property
    def weight(self) -> Tensor:
        """The normalized weight, computed on each access from ``weight_g`` and ``weight_v``; differentiable in both."""
        return computed(functional.weight_norm(self.weight_v, self.weight_g, self.dim, self.eps))

    @weight.setter
    def weight(self, value: Any) -> None:
        raise AttributeError(
            f"{type(self).__name__}: weight: it is computed from weight_g and weight_v and cannot be set; set those, "
            "or call wnfused.fold on the layer first"
        )

    @property
    def parametrizations(self) -> nn.ModuleDict:
        """Gain and direction as torch's parametrized weight norm shows them, unless the layer has parametrizations."""
        own = self._modules.get("parametrizations")
        return Parametrizations(self) if own is None else own  # type: ignore[return-value]

    @classmethod
    def plain_class(cls) -> type[nn.Module]:
        """The class of the layer without its norm."""
        return cls.user_class or cls.twin

    def fold_(self) -> None:
        """Turn this object into a plain layer with the normalized weight, as ``wnfused.fold`` does."""
        fold_layer(self, folded_weight(self))

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if name == "weight":  # nn.Module's assignment of parameters bypasses the property's setter
            object.__setattr__(self, name, param)
        super().register_parameter(name, param)

    def reset_parameters(self) -> None:
        """Reset direction and bias to torch's default, and the gain to the direction's norms."""
        self.twin.reset_parameters(SimpleNamespace(weight=self.weight_v, bias=self.bias))  # type: ignore[attr-defined]
        with torch.no_grad():
            self.weight_g.copy_(gain_of(self.weight_v, self.dim, self.eps))

    def extra_repr(self) -> str:
        parts = [super().extra_repr()]
        parts += [f"dim={self.dim}"] if self.dim != 0 else []
        parts += [f"eps={self.eps}"] if self.eps != 0 else []
        parts += [f"activation={self.activation!r}"] if self.activation is not None else []
        return ", ".join(parts)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *args: Any
    ) -> None:
        """Also accept the keys of torch's parametrization, and a plain weight (its norms become the gain)."""
        g_key, v_key = (prefix + name for name in SPELLINGS["hook"])
        for name, key in zip(SPELLINGS["parametrizations"], (g_key, v_key), strict=True):
            if prefix + name in state_dict and key not in state_dict:
                state_dict[key] = state_dict.pop(prefix + name)
        if prefix + "weight" in state_dict and g_key not in state_dict and v_key not in state_dict:
            v = state_dict[v_key] = state_dict.pop(prefix + "weight")
            if isinstance(v, Tensor) and v.shape == self.weight_v.shape:  # otherwise torch reports the mismatch
                assign = local_metadata.get("assign_to_params_buffers", False)
                state_dict[g_key] = gain_of(v if assign else v.to(self.weight_v.dtype), self.dim, self.eps)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def _register_load_state_dict_pre_hook(self, hook: Any, with_module: bool = False) -> Any:
        """Ignore the hook of torch's weight norm, called on this layer again: it would rename the keys to torch's."""
        if getattr(hook, "__name__", "") == "_weight_norm_compat_hook":
            return RemovableHandle(OrderedDict())
        return super()._register_load_state_dict_pre_hook(hook, with_module)  # type: ignore[no-untyped-call]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "WeightNormalized":
        if self._frozen is not None:
            self._frozen.forget()  # .to() and .half() replace a parameter's data without incrementing its version
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def _slow_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Called instead of ``forward`` while ``torch.jit`` traces, as ``torch.onnx.export(…, dynamo=False)`` does."""
        if torch.onnx.is_in_onnx_export():
            raise RuntimeError(
                f"torch.onnx.export: {type(self).__name__} has no operator in ONNX with dynamo=False; "
                "call wnfused.fold(model) first, or export with dynamo=True"
            )
        return super()._slow_forward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def __prepare_scriptable__(self) -> NoReturn:
        """Called by ``torch.jit.script`` before it compiles the layer, which would fail with an error of its parser."""
        raise RuntimeError(
            f"torch.jit.script: {type(self).__name__} cannot be compiled to TorchScript; call wnfused.fold(model) first"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_frozen", "_written")}


def become(
    module: nn.Module,
    kind: type[WeightNormalized],
    g: nn.Parameter,
    v: nn.Parameter,
    dim: int | None,
    eps: float = 0.0,
    activation: str | None = None,
) -> None:
    """Turn ``module``, a ``kind.twin`` whose ``weight`` was removed, into a ``kind`` with these parameters.

    The object's identity is kept, so parents, ties, hooks and the user's own attributes stay valid.
    """
    module.__class__ = kind
    module.activation, module.dim, module.eps = activation, dim, eps  # type: ignore[assignment]
    for name, parameter in (("weight_g", g), ("weight_v", v)):
        if name not in module._parameters:
            module.register_parameter(name, parameter)
    mark(module, dim)
