"""The layers: weight-normalized twins of ``torch.nn.Linear``, ``ConvNd`` and ``ConvTransposeNd``.

They take the arguments of their twins and three keyword arguments: ``activation`` (``None`` or ``"relu"``, fused),
``dim`` (the dimension that keeps its own norm, as in torch's ``weight_norm``; ``None`` for one norm over the whole
weight) and ``eps`` (the norm is ``sqrt(sum(v**2) + eps)``). A new layer equals torch's ``weight_norm`` of a new twin
built with the same seed: ``weight_v`` is the twin's default weight, ``weight_g`` its norms.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from wnfused import checks
from wnfused.functional import (
    convolve,
    wn_conv1d,
    wn_conv2d,
    wn_conv3d,
    wn_conv_transpose1d,
    wn_conv_transpose2d,
    wn_conv_transpose3d,
    wn_linear,
)
from wnfused.geometry import known_options
from wnfused.nn.base import WeightNormalized

__all__ = [
    "WNConv1d",
    "WNConv2d",
    "WNConv3d",
    "WNConvTranspose1d",
    "WNConvTranspose2d",
    "WNConvTranspose3d",
    "WNLinear",
]

Size = int | tuple[int, ...]

# Keep each as one node in a torch.fx trace: their argument checks need real tensors.
torch.fx.wrap("wn_linear")
torch.fx.wrap("wn_conv1d")
torch.fx.wrap("wn_conv2d")
torch.fx.wrap("wn_conv3d")
torch.fx.wrap("wn_conv_transpose1d")
torch.fx.wrap("wn_conv_transpose2d")
torch.fx.wrap("wn_conv_transpose3d")


class WNLinear(WeightNormalized, nn.Linear):
    """``activation(x @ weight.T + bias)``, ``weight = weight_g * weight_v / norm(weight_v)``, one norm per output."""

    twin = nn.Linear

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        dim: int | None = 0,
        eps: float = 0.0,
    ) -> None:
        checks.count(type(self).__name__, "in_features", in_features, least=0)
        checks.count(type(self).__name__, "out_features", out_features, least=0)
        checks.layer_dtype(type(self).__name__, dtype)
        self._take_over(nn.Linear(in_features, out_features, bias, device, dtype), activation, dim, eps)

    def _plain(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(input, weight, bias)

    def _fused(self, input: Tensor, v: Tensor, g: Tensor, bias: Tensor | None) -> Tensor:
        return wn_linear(input, v, g, bias, dim=self.dim, eps=self.eps, activation=self.activation)


class _Convolution(WeightNormalized, _ConvNd):
    """Argument checks shared by convolutions and transposed convolutions."""

    spatial: ClassVar[int]

    def _check_channels(self, in_channels: int, out_channels: int, groups: int, dtype: torch.dtype | None) -> None:
        checks.count(type(self).__name__, "in_channels", in_channels)
        checks.count(type(self).__name__, "out_channels", out_channels)
        checks.count(type(self).__name__, "groups", groups)
        checks.layer_dtype(type(self).__name__, dtype)

    def _directly(
        self, input: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, transposed: bool, extra: Any
    ) -> Tensor | None:
        """The operator without this call's checks, if the layer's options are known to be valid; else None."""
        if type(input) is not Tensor or torch.compiler.is_compiling():  # a proxy of torch.fx, or a subclass
            return None
        try:
            known = known_options(
                self.spatial, transposed, self.stride, self.padding, self.dilation, extra, self.groups,
                self.padding_mode, self.dim, self.eps, self.activation,
            )  # fmt: skip
        except TypeError:  # a list
            return None
        return None if known is None else convolve(input, v, g, bias, known)

    def _sizes(self, name: str, value: Size, least: int) -> tuple[int, ...]:
        return tuple(checks.sizes(type(self).__name__, name, value, self.spatial, least))


class _Conv(_Convolution):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        dim: int | None = 0,
        eps: float = 0.0,
    ) -> None:
        self._check_channels(in_channels, out_channels, groups, dtype)
        checks.padding_mode(type(self).__name__, padding_mode)
        plain = self.twin(
            in_channels,
            out_channels,
            self._sizes("kernel_size", kernel_size, least=1),
            self._sizes("stride", stride, least=1),
            padding if isinstance(padding, str) else self._sizes("padding", padding, least=0),
            self._sizes("dilation", dilation, least=1),
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )
        self._take_over(plain, activation, dim, eps)

    def _plain(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._conv_forward(input, weight, bias)

    def _options(self) -> dict[str, Any]:
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
            "padding_mode": self.padding_mode,
            "dim": self.dim,
            "eps": self.eps,
            "activation": self.activation,
        }


class WNConv1d(_Conv, nn.Conv1d):
    """``nn.Conv1d`` with one norm per output channel (``dim=0``), fused with an optional ReLU."""

    twin, spatial = nn.Conv1d, 1

    def _fused(self, input: Tensor, v: Tensor, g: Tensor, bias: Tensor | None) -> Tensor:
        y = self._directly(input, v, g, bias, False, 0)
        return wn_conv1d(input, v, g, bias, **self._options()) if y is None else y


class WNConv2d(_Conv, nn.Conv2d):
    """``nn.Conv2d`` with one norm per output channel (``dim=0``), fused with an optional ReLU."""

    twin, spatial = nn.Conv2d, 2

    def _fused(self, input: Tensor, v: Tensor, g: Tensor, bias: Tensor | None) -> Tensor:
        y = self._directly(input, v, g, bias, False, 0)
        return wn_conv2d(input, v, g, bias, **self._options()) if y is None else y


class WNConv3d(_Conv, nn.Conv3d):
    """``nn.Conv3d`` with one norm per output channel (``dim=0``), fused with an optional ReLU."""

    twin, spatial = nn.Conv3d, 3

    def _fused(self, input: Tensor, v: Tensor, g: Tensor, bias: Tensor | None) -> Tensor:
        y = self._directly(input, v, g, bias, False, 0)
        return wn_conv3d(input, v, g, bias, **self._options()) if y is None else y


class _ConvTranspose(_Convolution, _ConvTransposeNd):
    padding: tuple[int, ...]  # never a string here

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        dim: int | None = 0,
        eps: float = 0.0,
    ) -> None:
        self._check_channels(in_channels, out_channels, groups, dtype)
        plain = self.twin(
            in_channels,
            out_channels,
            self._sizes("kernel_size", kernel_size, least=1),
            self._sizes("stride", stride, least=1),
            self._sizes("padding", padding, least=0),
            self._sizes("output_padding", output_padding, least=0),
            groups,
            bias,
            self._sizes("dilation", dilation, least=1),
            padding_mode,
            device,
            dtype,
        )
        self._take_over(plain, activation, dim, eps)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return self._forward(input, self._extra(input, output_size))

    def _extra(self, input: Tensor, output_size: Sequence[int] | None) -> Sequence[int]:
        """The output padding that yields ``output_size``, computed by torch's own method."""
        if output_size is None:
            return self.output_padding
        geometry = (self.stride, self.padding, self.kernel_size, self.spatial, self.dilation)
        return self._output_padding(input, list(output_size), *geometry)  # type: ignore[arg-type]

    def _options(self, output_padding: Sequence[int]) -> dict[str, Any]:
        return {
            "stride": self.stride,
            "padding": self.padding,
            "output_padding": output_padding,
            "groups": self.groups,
            "dilation": self.dilation,
            "dim": self.dim,
            "eps": self.eps,
            "activation": self.activation,
        }


class WNConvTranspose1d(_ConvTranspose, nn.ConvTranspose1d):
    """``nn.ConvTranspose1d``, weight-normalized. Its ``dim=0`` is the *input* channel, as in torch's weight norm."""

    twin, spatial = nn.ConvTranspose1d, 1

    def _plain(self, input: Tensor, weight: Tensor, bias: Tensor | None, extra: Sequence[int]) -> Tensor:
        return F.conv_transpose1d(input, weight, bias, self.stride, self.padding, extra, self.groups, self.dilation)

    def _fused(self, input: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, extra: Sequence[int]) -> Tensor:
        y = self._directly(input, v, g, bias, True, extra)
        return wn_conv_transpose1d(input, v, g, bias, **self._options(extra)) if y is None else y


class WNConvTranspose2d(_ConvTranspose, nn.ConvTranspose2d):
    """``nn.ConvTranspose2d``, weight-normalized. Its ``dim=0`` is the *input* channel, as in torch's weight norm."""

    twin, spatial = nn.ConvTranspose2d, 2

    def _plain(self, input: Tensor, weight: Tensor, bias: Tensor | None, extra: Sequence[int]) -> Tensor:
        return F.conv_transpose2d(input, weight, bias, self.stride, self.padding, extra, self.groups, self.dilation)

    def _fused(self, input: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, extra: Sequence[int]) -> Tensor:
        y = self._directly(input, v, g, bias, True, extra)
        return wn_conv_transpose2d(input, v, g, bias, **self._options(extra)) if y is None else y


class WNConvTranspose3d(_ConvTranspose, nn.ConvTranspose3d):
    """``nn.ConvTranspose3d``, weight-normalized. Its ``dim=0`` is the *input* channel, as in torch's weight norm."""

    twin, spatial = nn.ConvTranspose3d, 3

    def _plain(self, input: Tensor, weight: Tensor, bias: Tensor | None, extra: Sequence[int]) -> Tensor:
        return F.conv_transpose3d(input, weight, bias, self.stride, self.padding, extra, self.groups, self.dilation)

    def _fused(self, input: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, extra: Sequence[int]) -> Tensor:
        y = self._directly(input, v, g, bias, True, extra)
        return wn_conv_transpose3d(input, v, g, bias, **self._options(extra)) if y is None else y
