"""The role of each weight-normalized layer, read from the model's dataflow. The role determines the initial gain.

| kind | the layer's output | γ |
|---|---|---|
| "before_relu" | feeds a ReLU | 2 |
| "gelu", "leaky_relu", … | feeds that activation φ | 1 / E[φ(z)²], z ~ N(0, 1) |
| "residual_end" | is added to the shortcut, in a stage of B blocks | 1/B |
| "residual_end" | is added to the shortcut after an activation φ | see ``gamma_at_branch_end`` |
| "gated" | feeds one side of a product φ(a) · ψ(b) | 1 / (E[φ(z)²] · E[ψ(z)²]) |
| "gated" | feeds both sides of it, half of the rows each (GLU) | twice that |
| "shortcut" | is the shortcut that a branch is added to | 1 |
| "other" | is used in another way, or in several | 1 |

Operations that are linear or commute with ReLU may be between the layer and the activation or sum: dropout,
pooling, reshaping, concatenation, scaling by constants or broadcast gates. A sum is residual if its operands have a
common origin and the paths from there differ in length; the shorter path is the shortcut. Consecutive residual sums of
the same shape form a stage.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from wnfused import checks
from wnfused.init import graph_ops
from wnfused.init.activations import RELU, Activation, activation_gamma, gamma_at_branch_end
from wnfused.init.graph import Graph, Node, RolesUnknown, record
from wnfused.init.graph_residuals import Block, residual_blocks
from wnfused.init.layers import listed, normalized_modules

__all__ = ["Role", "RolesUnknown", "infer_roles"]


@dataclass(frozen=True)
class Role:
    """The role of a layer in its model: its ``kind``, the ``gamma`` that follows from it, and ``why``, the evidence.

    For a layer that ends a residual branch, ``block`` is the number of its block in the stage, counted from 1.
    """

    kind: str
    gamma: float
    why: str
    block: int | None = None


def infer_roles(model: nn.Module, example_input: Any) -> dict[str, Role]:
    """Map the name of each weight-normalized layer to its role, in the order in which the layers first run.

    The model runs once on ``example_input`` (a tensor, a tuple of arguments or a dict of keyword arguments; a batch of
    one is enough) in eval mode without gradients, and is not changed. If the calls of a shared layer have different
    roles, its kind is "other", and ``why`` lists them.

    Layers that the model does not call in eval mode are missing from the result, and a warning names them.

    Raises ``RolesUnknown`` if the model does not run, calls no layer, or passes a layer's output to an operation that
    cannot be traced (a scripted function, numpy). Pass ``roles=`` to the scheme in this case.
    """
    checks.module("infer_roles", model)
    layers = normalized_modules(model)
    if not layers:
        raise ValueError(f"infer_roles: model: expected weight-normalized layers, found none in {type(model).__name__}")
    graph = record(model, example_input)
    _check_reached(layers, graph)
    reader = _Reader(graph)
    return {
        name: _of_all_calls([reader.role(layers[name], call) for call in calls]) for name, calls in graph.calls.items()
    }


def _check_reached(layers: dict[str, nn.Module], graph: Graph) -> None:
    uncalled = [name for name in layers if name not in graph.calls]
    if uncalled:
        message = f"infer_roles: {listed(uncalled)}: not called when the model runs on example_input in eval mode"
        if not graph.calls:
            raise RolesUnknown(f"{message}, so the role is unknown; pass roles=")
        warnings.warn(f"{message}, so the layer gets no role and is not initialized; pass roles=", stacklevel=3)
    ends = [
        name
        for name, calls in graph.calls.items()
        if graph.untraced and any(not graph.readers[call] and call not in graph.outputs for call in calls)
    ]
    if ends:
        raise RolesUnknown(
            f"infer_roles: {listed(ends)}: the output is used by an operation that cannot be traced (a scripted "
            "function, numpy), so the role is unknown; pass roles="
        )


def _of_all_calls(roles: list[Role]) -> Role:
    if len({(role.kind, role.gamma) for role in roles}) == 1:
        uses = f" (in each of its {len(roles)} calls)" if len(roles) > 1 else ""
        return replace(roles[0], why=roles[0].why + uses)
    return Role("other", 1.0, f"its {len(roles)} calls have different roles: {_alternatives(roles)}")


def _alternatives(roles: list[Role]) -> str:
    first = {(role.kind, role.gamma): role.why for role in reversed(roles)}
    return "; ".join(f"{kind} ({why})" for (kind, _), why in reversed(first.items()))


@dataclass(frozen=True)
class _End:
    """One use of a layer's output: the ``node`` that reads it (None: the model's output), and the operand it reads."""

    node: int | None
    source: int
    through: tuple[str, ...]
    summed: str | None  # the label of a non-residual sum on the path

    @property
    def way(self) -> str:
        return f" through {', '.join(self.through)}" if self.through else ""


class _Reader:
    """Reads the roles of layer calls from a graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes = graph.nodes
        self._blocks = residual_blocks(graph)

    def role(self, layer: nn.Module, call: int) -> Role:
        if getattr(layer, "activation", None) == "relu":
            fused = Role("before_relu", RELU.gamma, "has a fused ReLU")
            return self._end_of_branch(call, call, RELU, "its fused ReLU") or fused
        ends = list(self._ends(call))
        if not ends:
            return Role("other", 1.0, "its output is not used")
        if (gated := self._gated(call, ends)) is not None:
            return gated
        roles = [self._role_at(call, end) for end in ends]
        if len({(role.kind, role.gamma) for role in roles}) == 1:
            return self._most_informative(ends, roles)
        return Role("other", 1.0, f"its output is used in different ways: {_alternatives(roles)}")

    def _gated(self, call: int, ends: list[_End]) -> Role | None:
        """The role of a layer whose whole output feeds one gated unit: tanh(a) · sigmoid(b), GLU, SwiGLU, …

        The product of two independent pre-activations of variance 1 has the mean square E[φ(z)²] · E[ψ(z)²] = 1/γ. If
        a and b are the halves of one output, half of its rows remain after the product, so γ is twice that.
        """
        products = {self._product_after(end) for end in ends}
        product = products.pop()
        if products or product is None:
            return None
        node = self._nodes[product]
        halves = _twice(self._nodes[call].shape, node.shape)
        if len(ends) > 1 and not halves:
            return None  # both factors are functions of the same value
        if any(end.node in self._blocks for end in self._ends(product)):
            return Role("other", 1.0, f"feeds {node.label}, a gated unit at the end of a residual branch")
        part = "both sides" if halves else "one side"
        return Role("gated", (2 if halves else 1) * self._product_gamma(node), f"feeds {part} of {node.label}")

    def _product_after(self, end: _End) -> int | None:
        """The product that this use of a layer's output ends in, directly or after an activation."""
        if end.node is None or end.summed is not None or end.source not in self._nodes[end.node].inputs:
            return None
        if self._is_product(end.node):
            return end.node
        if self._nodes[end.node].activation is None:
            return None
        after = {later.node for later in self._ends(end.node)}
        product = after.pop()
        return product if not after and product is not None and self._is_product(product) else None

    def _is_product(self, index: int) -> bool:
        node = self._nodes[index]
        if node.op == "glu":
            return True
        if node.op != "mul" or len(node.inputs) != 2:
            return False
        return any(self._nodes[factor].activation is not None for factor in node.inputs)

    def _product_gamma(self, node: Node) -> float:
        if node.op == "glu":
            return activation_gamma(torch.sigmoid)
        factors = [self._nodes[factor].activation for factor in node.inputs]
        return math.prod(factor.gamma for factor in factors if factor is not None)

    def _most_informative(self, ends: list[_End], roles: list[Role]) -> Role:
        """Prefer the evidence of a fork to that of the first layer in the branch that starts there."""
        return next((role for end, role in zip(ends, roles, strict=True) if end.node in self._blocks), roles[0])

    def _ends(self, call: int) -> Iterator[_End]:
        """Follow the output through operations that preserve its role."""
        waiting: list[tuple[int, tuple[str, ...], str | None]] = [(call, (), None)]
        seen = {call}
        while waiting:
            index, through, summed = waiting.pop(0)
            if index in self._graph.outputs:
                yield _End(None, index, through, summed)
            for reader in self._graph.readers[index]:
                node = self._nodes[reader]
                plain_sum = node.op in graph_ops.SUMS and len(node.inputs) > 1 and reader not in self._blocks
                if not (plain_sum or self._passes(reader, index)):
                    yield _End(reader, index, through, summed)
                elif reader not in seen:
                    seen.add(reader)
                    waiting.append(
                        (reader, through if plain_sum else (*through, node.label), node.label if plain_sum else summed)
                    )

    def _passes(self, index: int, source: int) -> bool:
        node = self._nodes[index]
        if source not in node.inputs:
            return False  # it only gates or shifts another value
        if node.op in graph_ops.SUMS:
            return len(node.inputs) == 1
        if node.op == "mul":
            return len(node.inputs) == 1 and all(self._is_gate(side, source) for side in node.side)
        if node.op == "div":
            return len(node.inputs) == 1 and not node.side
        return graph_ops.passes(node.op)

    def _is_gate(self, side: int, source: int) -> bool:
        """Whether a broadcast factor is a gate, and not a statistic of the value it scales (a normalization)."""
        while side > source:
            node = self._nodes[side]
            if node.weighted or len(node.inputs) != 1:
                return True
            side = node.inputs[0]
        return side != source

    def _role_at(self, call: int, end: _End) -> Role:
        if end.node is None:
            return Role("other", 1.0, f"produces the model's output{end.way}")
        if end.node in self._blocks:
            return self._role_in_block(call, end, self._blocks[end.node])
        node = self._nodes[end.node]
        if end.source not in node.inputs:
            return Role("other", 1.0, f"only gates or shifts another value, at {node.label}")
        if end.summed is not None:
            return Role("other", 1.0, f"is one term of {end.summed}, which feeds {node.label}")
        if node.activation is not None:
            kind = "before_relu" if node.op == "relu" else node.op
            role = Role(kind, node.activation.gamma, f"feeds {node.label}{end.way}")
            return self._end_of_branch(call, end.node, node.activation, node.label) or role
        return Role("other", 1.0, _why_other(node, end))

    def _role_in_block(self, call: int, end: _End, block: Block) -> Role:
        label = self._nodes[block.sum].label
        if end.source == block.branch:
            blocks = f"{block.stage_blocks} block{'s' if block.stage_blocks > 1 else ''}"
            why = f"adds to the shortcut at {label}{end.way}, in a stage of {blocks}{self._nesting(block)}"
            return Role("residual_end", 1 / block.stage_blocks, why, block.number)
        if call in block.shortcut_nodes:
            return Role("shortcut", 1.0, f"is the shortcut into {label}{end.way}, beside a branch of {_layers(block)}")
        return Role("other", 1.0, f"starts the residual block that ends at {label}{end.way}")

    def _end_of_branch(self, call: int, node: int, activation: Activation, label: str) -> Role | None:
        """The role of a layer whose activation, at ``node``, is the last operation of a residual branch.

        With the activation's own γ each block would double the mean square of its input.
        """
        ends = list(self._ends(node))
        if not ends or not all(end.node in self._blocks for end in ends):
            return None
        first, *others = [self._role_at(call, end) for end in ends]
        if first.kind != "residual_end" or any(other.gamma != first.gamma for other in others):
            return None
        gamma = gamma_at_branch_end(activation.phi, round(1 / first.gamma))
        return None if gamma is None else replace(first, gamma=gamma, why=f"{first.why}, after {label}")

    def _nesting(self, block: Block) -> str:
        if block.outer is None:
            return ""
        outer = self._nodes[block.outer.sum].label
        if block.outer.branch == block.sum:
            return f", at the end of the outer branch into {outer}"
        return f", inside the branch into {outer}"


def _twice(shape: tuple[int, ...], part: tuple[int, ...]) -> bool:
    """Whether ``part`` is half of ``shape``; a causal convolution's output may be cut to its input's length as well."""
    if math.prod(shape) == 2 * math.prod(part):
        return True
    cut = len(shape) == len(part) and all(whole >= size for whole, size in zip(shape, part, strict=True))
    return cut and any(whole == 2 * size for whole, size in zip(shape, part, strict=True))


def _layers(block: Block) -> str:
    return "1 layer" if block.branch_layers == 1 else f"{block.branch_layers} layers"


def _why_other(node: Node, end: _End) -> str:
    if node.op in graph_ops.NORMALIZATIONS or (node.op == "mul" and node.side):
        return f"{node.label} rescales its output{end.way}"
    if node.weighted:
        return f"feeds {node.label}{end.way} without an activation"
    return f"feeds {node.label}{end.way}, which is not an activation"
