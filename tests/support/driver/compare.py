"""Compares each launch of the C++ launch path with triton's own launcher. Usage: python -m tests.support.driver.compare

Every layer runs on the fake driver: in Python, where triton's launcher makes the launches; repeated by Python; and
repeated by the C++ launch path. Prints the names of the kernels that agreed, as JSON, by case.
"""

import json
import os

os.environ["TRITON_INTERPRET"] = "0"

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

import wnfused
from tests.support.driver.fake import FakeDriver, Seen, launching_nothing
from wnfused.kernels.triton import recipe, table
from wnfused.kernels.triton.launch import Launch, consumed_by

Call = Callable[[], list[Tensor]]
Memory = list[tuple[int, int]]  # where tensors start, and their bytes


def _memory(tensors: list[Tensor]) -> Memory:
    return [(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in tensors]


def _places(seen: list[Seen], known: Memory) -> list[tuple[Any, ...]]:
    """Each address as (number of the known tensor, offset); of others, the order in which they are first used."""
    found: list[tuple[Any, ...]] = []
    others: dict[int, int] = {}
    for launch in seen:
        for value, is_pointer in zip(launch.arguments, launch.pointers, strict=True):
            if not is_pointer or value == 0:
                found.append(("value", value))
                continue
            inside = [(i, value - start) for i, (start, size) in enumerate(known) if start <= value < start + size]
            found.append(("known", *inside[0]) if inside else ("other", others.setdefault(value, len(others))))
    return found


@contextmanager
def _repeated() -> Iterator[None]:
    """A context in which no launch may be planned again."""

    def refuse(record: Launch) -> None:
        raise AssertionError(f"{record.name} is planned again: the call was not repeated")

    run, Launch.run = Launch.run, refuse
    try:
        yield
    finally:
        Launch.run = run


def compare(fake: FakeDriver, inputs: list[Tensor], call: Call) -> list[str]:
    names: dict[int, str] = {}
    kept: list[Launch] = []  # so that no address is used twice

    def run(record: Launch) -> None:
        kept.append(record)
        compiled = record.run()
        names[compiled.function] = record.name
        fake.learn(record, compiled)

    table.activate(None)
    with consumed_by(run):
        call()
        fake.watch()
        first = call()
        expected = fake.seen
    theirs = _places(expected, _memory([*inputs, *first]))
    for device in (None, "cpu"):  # repeated by Python, by C++
        table.activate(device)
        fake.watch(False)
        call()  # recorded
        fake.watch()
        with _repeated():
            second = call()
        for launch, ours in zip(expected, fake.seen, strict=True):
            assert launch[:4] == ours[:4], (names[launch.function], launch[:4], ours[:4])
        found = _places(fake.seen, _memory([*inputs, *second]))
        assert theirs == found, [pair for pair in zip(theirs, found, strict=True) if pair[0] != pair[1]]
    return [names[launch.function] for launch in expected]


def cases() -> dict[str, tuple[torch.nn.Module, Tensor]]:
    bf16 = torch.bfloat16
    images = torch.randn(2, 32, 9, 9, dtype=bf16).contiguous(memory_format=torch.channels_last)
    return {
        "linear": (wnfused.WNLinear(70, 90, eps=1e-3), torch.randn(40, 70)),
        "linear, bf16": (wnfused.WNLinear(64, 128, dtype=bf16), torch.randn(64, 64, dtype=bf16)),
        "linear, few rows": (wnfused.WNLinear(64, 128), torch.randn(3, 64)),
        "linear, ReLU": (wnfused.WNLinear(64, 48, bias=False, activation="relu"), torch.randn(64, 64)),
        "linear, split-K": (wnfused.WNLinear(4100, 20), torch.randn(3, 4100)),
        "linear, all ones": (wnfused.WNLinear(1, 1), torch.randn(1, 1)),
        "linear, gain per input": (wnfused.WNLinear(48, 64, dim=1), torch.randn(40, 48)),
        "images": (wnfused.WNConv2d(32, 48, 3, dtype=bf16), images),
        "images, depthwise": (wnfused.WNConv2d(32, 32, 3, groups=32, dtype=bf16), images),
        "signal": (wnfused.WNConv1d(4, 6, 3), torch.randn(2, 4, 9)),
        "signal, transposed": (wnfused.WNConvTranspose1d(4, 6, 4, stride=2), torch.randn(2, 4, 9)),
    }


def main() -> None:
    torch.set_num_threads(1)
    assert recipe.bind is recipe.bind_cuda
    agreed: dict[str, list[str]] = {}
    with launching_nothing() as fake:
        for name, (layer, x) in cases().items():
            x.requires_grad_()
            dy = torch.randn_like(layer(x))

            def call(layer: torch.nn.Module = layer, x: Tensor = x, dy: Tensor = dy) -> list[Tensor]:
                y = layer(x)
                return [y, *torch.autograd.grad(y, [x, *layer.parameters()], dy)]

            agreed[name] = compare(fake, [x, dy, *layer.parameters()], call)
    print(json.dumps(agreed))  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main()
