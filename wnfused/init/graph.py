"""A model's dataflow, recorded by running it once: which operation or layer reads which result.

Nothing is traced symbolically, so data-dependent control flow, functional and in-place operations, shared layers and
checkpointing need no special case. Each call of a weight-normalized layer is one node; inside other modules every torch
function is a node. Operations that read only parameters and constants are not recorded.
"""

import math
import sys
from collections import Counter
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from wnfused.init import graph_ops
from wnfused.init.activations import Activation, activation_of_call
from wnfused.init.layers import normalized_modules
from wnfused.init.probes import activation_of_module
from wnfused.model_io import arguments, does_not_run, tensors_in
from wnfused.ops.backends import BackendUnavailable
from wnfused.unchanged import unchanged


class RolesUnknown(ValueError):
    """The roles of some layers cannot be read from the model; the message names the layers and the reason."""


@dataclass(frozen=True)
class Node:
    """One operation or layer call. ``inputs`` and ``side`` are the indices of the nodes it reads.

    ``side`` holds the operands that are only broadcast over the result, such as gates or shifts by an embedding.
    """

    op: str
    label: str
    inputs: tuple[int, ...]
    side: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    layer: str | None = None
    taps: int = 1  # kernel size of a layer
    activation: Activation | None = None

    @property
    def weighted(self) -> bool:
        return self.layer is not None or graph_ops.weighted(self.op)


@dataclass
class Graph:
    """The nodes in execution order: a node only reads earlier nodes."""

    nodes: list[Node] = field(default_factory=list)
    outputs: set[int] = field(default_factory=set)
    calls: dict[str, list[int]] = field(default_factory=dict)  # by weight-normalized layer
    readers: list[list[int]] = field(default_factory=list)  # by node
    untraced: bool = False  # a tensor came from an operation that cannot be traced: a scripted function, numpy

    def link(self) -> None:
        """Fill in each node's readers. Those without effect on the model's output count only if there are no others."""
        useful = set(self.outputs)
        every: list[list[int]] = [[] for _ in self.nodes]
        for index in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[index]
            for source in dict.fromkeys((*node.inputs, *node.side)):
                every[source].append(index)
            if index in useful:
                useful.update(node.inputs)
        self.readers = []
        for index, readers in enumerate(every):
            main = [reader for reader in readers if reader in useful and index in self.nodes[reader].inputs]
            self.readers.append(sorted(main if main or index in self.outputs else readers))


def record(model: nn.Module, example_input: Any) -> Graph:
    """Run ``model`` on ``example_input`` (a tensor, a tuple of arguments, a dict of keyword arguments)."""
    if example_input is None:
        raise RolesUnknown(
            "infer_roles: example_input: expected an input the model can run on, got None; or pass roles="
        )
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise RolesUnknown(f"infer_roles: {lazy[0]} is not initialized yet: run the model once first, or pass roles=")
    args, kwargs = arguments(example_input)
    recorder = _Recorder(model)
    with unchanged(model), recorder.hooks(), torch.no_grad():
        for module in recorder.modules.values():
            module.training = False
        recorder.begin((args, kwargs))
        try:
            with recorder, uncompiled():
                result = model(*args, **kwargs)
        except BackendUnavailable:
            raise
        except Exception as error:
            reason = does_not_run("example_input", example_input, error, (recorder.running or [""])[-1])
            raise RolesUnknown(f"infer_roles: {reason}; pass an input that fits, or roles=") from error
        recorder.end(result)
    return recorder.graph


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled parts of the model eagerly. torch's compiler is not imported just for this."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


class _Recorder(TorchFunctionMode):
    """Records the layer calls of a forward pass, by hooks, and every torch function outside the layers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.graph = Graph()
        self.running: list[str] = []  # names of the modules being called, outermost first
        self._in_layers: list[str] = []
        self._model = model
        self._layers = normalized_modules(model)
        self.modules = {name: m for name, m in model.named_modules() if not isinstance(m, torch.jit.ScriptModule)}
        self._made_by: Any = WeakIdKeyDictionary()  # tensor -> index of its node
        self._constants: Any = WeakIdKeyDictionary()  # tensors independent of the input -> whether made of buffers only
        self._counts: Counter[str] = Counter()

    def begin(self, inputs: Any) -> None:
        for module in self.modules.values():
            learned = (*module._parameters.values(), *module.__dict__.values())
            for tensors, fixed in ((learned, False), (module._buffers.values(), True)):
                for tensor in tensors:
                    if isinstance(tensor, Tensor):
                        self._constants[tensor] = fixed
        for tensor in tensors_in(inputs):
            self._assign(tensor, Node("input", f"input_{len(self.graph.nodes) + 1}", (), shape=tuple(tensor.shape)))

    def end(self, result: Any) -> None:
        self.graph.outputs = set(self._sources(tensors_in(result)))
        self.graph.link()

    def hooks(self) -> ExitStack:
        stack = ExitStack()
        for name, module in self.modules.items():
            enter, leave = self._hooks_for(name)
            stack.callback(module.register_forward_pre_hook(enter).remove)
            # Run before the user's hooks: operations in those hooks are part of the model.
            stack.callback(module.register_forward_hook(leave, prepend=True, with_kwargs=True).remove)
        return stack

    def _hooks_for(self, name: str) -> tuple[Any, Any]:
        is_layer = name in self._layers
        probed = self._may_be_activation(name)
        starts: list[int] = []

        def enter(module: nn.Module, args: Any) -> None:
            starts.append(len(self.graph.nodes))
            self.running.append(name)
            if is_layer:
                self._in_layers.append(name)

        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            _pop_through(self.running, name)
            if is_layer:
                _pop_through(self._in_layers, name)
                if not self._in_layers:
                    self._note_layer(name, (args, kwargs), output)
            start = starts.pop() if starts else len(self.graph.nodes)
            if probed and not self._in_layers and len(args) == 1 and not kwargs:
                self._note_activation(name, module, args[0], output, start)

        return enter, leave

    def _note_layer(self, name: str, inputs: Any, output: Any) -> None:
        outputs = list(tensors_in(output))
        shape = tuple(outputs[0].shape) if outputs else ()
        label = name or type(self._model).__name__
        taps = math.prod(getattr(self._layers[name], "kernel_size", ()))
        index = self._add(Node("layer", label, self._sources(tensors_in(inputs)), (), shape, name, taps))
        self.graph.calls.setdefault(name, []).append(index)
        for tensor in outputs:
            self._made_by[tensor] = index

    def _may_be_activation(self, name: str) -> bool:
        """Whether the model defines this module itself, and it calls no others."""
        module = self.modules[name]
        own = not type(module).__module__.startswith(("torch.", "wnfused."))
        return own and bool(name) and name not in self._layers and not module._modules

    def _note_activation(self, name: str, module: nn.Module, x: Any, y: Any, start: int) -> None:
        """Replace the operations inside a module by one node, if the module is an activation such as Snake."""
        if not (isinstance(x, Tensor) and isinstance(y, Tensor)) or x.shape != y.shape or x is y:
            return
        made_by, sources = self._made_by.get(y), [self._made_by[x]] if x in self._made_by else []
        if not sources or (made_by is not None and self.graph.nodes[made_by].activation is not None):
            return  # a known activation in a module of the model
        self._in_layers.append(name)  # record nothing meanwhile
        try:
            activation = activation_of_module(_Forward(module), x)
        finally:
            _pop_through(self._in_layers, name)
        if activation is None:
            return
        kind = type(module).__name__
        del self.graph.nodes[start:]
        node = Node(kind.lower(), f"{name} ({kind})", tuple(sources), (), tuple(y.shape), activation=activation)
        index = self._add(node)
        self._made_by[y] = index
        for tensor, maker in list(self._made_by.items()):
            if maker > index:
                self._made_by[tensor] = index

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._in_layers:
            return func(*args, **kwargs)
        target = args[0] if args and isinstance(args[0], Tensor) else None
        version = _version(target)
        result = func(*args, **kwargs)
        self._note_function(func, args, kwargs, result, target if _version(target) != version else None)
        return result

    def _note_function(
        self, func: Any, args: tuple[Any, ...], kwargs: Any, result: Any, written: Tensor | None
    ) -> None:
        outputs = list(tensors_in(result)) if written is None else [written]
        if not outputs:
            return
        operands = list(tensors_in((args, kwargs)))
        if not self._sources(operands):
            for tensor in outputs:
                if tensor not in self._made_by:
                    self._constants[tensor] = all(self._constants.get(t, True) for t in operands)
            return
        index = self._add(self._node(func, args, kwargs, operands, outputs[0]))
        for tensor in outputs:
            self._made_by[tensor] = index
        if written is not None:
            self._rewrite_views(written, index)

    def _node(self, func: Any, args: Any, kwargs: Any, operands: list[Tensor], output: Tensor) -> Node:
        op = graph_ops.canonical(func, args, kwargs)
        if graph_ops.is_filter(op, operands, self._constants.get(operands[-1], False)):
            op = "filter"
        activation = activation_of_call(op, func, args, kwargs)
        shape = tuple(output.shape)
        inputs = self._sources(operands)
        side: tuple[int, ...] = ()
        if op in (*graph_ops.SUMS, *graph_ops.PRODUCTS):
            full = self._sources(t for t in operands if tuple(t.shape) == shape)
            side = tuple(source for source in inputs if source not in full) if full else ()
            inputs = full or inputs
        gated = self._self_gated(inputs) if op == "mul" else None
        if gated is not None:
            op, inputs, activation = "silu", (gated,), activation_of_call("silu", nn.functional.silu, (), {})
        return Node(op, self._label(op), inputs, side, shape, activation=activation)

    def _self_gated(self, inputs: tuple[int, ...]) -> int | None:
        """The x of ``x * sigmoid(x)``, which is SiLU written out."""
        for gate in inputs:
            node = self.graph.nodes[gate]
            if node.op == "sigmoid" and set(inputs) == {gate, *node.inputs}:
                return node.inputs[0]
        return None

    def _label(self, op: str) -> str:
        module = self.modules[self.running[-1]] if self.running else self._model
        if self.running and type(module).__module__.startswith("torch.nn.") and not module._modules:
            return f"{self.running[-1] or 'model'} ({type(module).__name__})"
        self._counts[op] += 1
        return f"{op}_{self._counts[op]}"

    def _sources(self, tensors: Any) -> tuple[int, ...]:
        found = []
        for tensor in tensors:
            made_by = self._made_by.get(tensor)
            if made_by is None:
                self.graph.untraced |= tensor not in self._constants
            elif made_by not in found:
                found.append(made_by)
        return tuple(found)

    def _add(self, node: Node) -> int:
        self.graph.nodes.append(node)
        return len(self.graph.nodes) - 1

    def _assign(self, tensor: Tensor, node: Node) -> None:
        self._made_by[tensor] = self._add(node)

    def _rewrite_views(self, written: Tensor, index: int) -> None:
        """After an in-place operation, mark the tensors that share its memory: they hold all or part of its result."""
        memory = written.untyped_storage()._cdata
        for tensor, made_by in list(self._made_by.items()):
            if tensor is written or tensor.untyped_storage()._cdata != memory:
                continue
            if tensor.numel() > written.numel():
                self._assign(tensor, Node("write", self._label("write"), (made_by, index), (), tuple(tensor.shape)))
            elif tensor.numel() < written.numel() or tensor.storage_offset() == written.storage_offset():
                self._made_by[tensor] = index


class _Forward(nn.Module):
    """Calls a module's forward without its hooks."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.__dict__["module"] = module

    def forward(self, x: Tensor) -> Any:
        return self.__dict__["module"].forward(x)


def _version(tensor: Tensor | None) -> int:
    return -1 if tensor is None or tensor.is_inference() else tensor._version


def _pop_through(stack: list[str], name: str) -> None:
    """Pop ``name`` and everything above it: modules left by an exception that the model caught."""
    while stack and stack.pop() != name:
        pass
