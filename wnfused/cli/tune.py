"""``wnfused tune``: measure the Triton kernels on this GPU, or the convolutions of a model on this CPU."""

import argparse
import sys
from pathlib import Path
from typing import Any

from wnfused.cli.commands import cannot_write, command, fail
from wnfused.cli.inputs import add_model_arguments, example_input

_DTYPES = ("bfloat16", "float16", "float32")


def _tune_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser, optional=True)
    parser.add_argument("--device", default="cuda", help="the GPU to measure (default: cuda), or cpu: measure MODEL")
    parser.add_argument(
        "--out", metavar="FILE", default="cpu-routes.json", help="cpu: where the answers go (%(default)s)"
    )
    parser.add_argument(
        "--dtype", default="bfloat16", choices=_DTYPES, help="dtype of the activations (default: bfloat16)"
    )
    parser.add_argument(
        "--weights",
        default="float32",
        choices=_DTYPES,
        help="dtype of the weights (default: float32, as under autocast)",
    )
    parser.add_argument(
        "--fp32-precision",
        choices=("ieee", "tf32"),
        help="precision of float32 products (default: torch's current setting)",
    )
    parser.add_argument(
        "--linear",
        action="append",
        default=[],
        metavar="M,IN,OUT",
        help="a linear layer to tune instead of the default layers",
    )
    parser.add_argument("--clear", action="store_true", help="delete earlier measurements of this device")


@command(
    "tune",
    "measure the kernels on this GPU, or a model's convolutions on this CPU, and store the fastest",
    _tune_arguments,
)
def tune(args: argparse.Namespace) -> int:
    return _tune_cpu(args) if args.device == "cpu" else _tune_gpu(args)


def _tune_cpu(args: argparse.Namespace) -> int:
    from wnfused.diagnostics import cpu_tuning
    from wnfused.diagnostics import doctor as clinic

    if args.model is None:
        return fail("tune: MODEL: --device cpu measures a model; name one as package.module:name", code=2)
    if problem := cannot_write(args.out):
        return fail(f"tune: --out: {problem}", code=2)
    sys.path.insert(0, str(Path.cwd()))
    try:
        example = example_input(args.input)
        found = cpu_tuning.convolutions(clinic.load(args.model), example)
    except (clinic.BadModel, RuntimeError, ValueError, TypeError) as error:
        return fail(f"tune: {str(error).splitlines()[0]}", code=2)
    if not found:
        return fail(
            "tune: MODEL: it calls no weight-normalized float32 convolution; there is nothing to measure", code=2
        )
    answers = []
    for number, layer in enumerate(found, 1):
        answers += cpu_tuning.tune([layer])
        routes = ", ".join(f"{a['product']}: {a['route']}" for a in answers[-3:])
        print(f"{number}/{len(found)} {list(layer.x)} * {list(layer.v)}: {routes}", flush=True)
    cpu_tuning.save(answers, Path(args.out))
    print(f"stored in {args.out}; WNFUSED_CPU_ROUTES={args.out} uses it")
    return 0


def _tune_gpu(args: argparse.Namespace) -> int:
    import torch

    from wnfused.kernels.triton import support

    if reason := support.missing():
        return fail(f"tune: {reason}")
    from wnfused.kernels.triton import measure
    from wnfused.kernels.triton import tune as plans

    try:
        device, layers = torch.device(args.device), [_linear_layer(text) for text in args.linear] or measure.LAYERS
    except (RuntimeError, ValueError) as error:
        return fail(f"tune: {str(error).splitlines()[0]}", code=2)
    dtype, weights = getattr(torch, args.dtype), getattr(torch, args.weights)
    if weights not in (dtype, torch.float32):
        return fail(f"tune: --weights: expected {args.dtype} or float32 under {args.dtype} activations", code=2)
    if reason := measure.why_not(device):
        return fail(f"tune: {reason}")
    try:
        plans.cache_file(device).parent.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # no home directory, or one that is not writable
        return fail(f"tune: the results cannot be stored ({error}); set WNFUSED_TUNE_DIR to a writable directory")
    if args.fp32_precision:
        torch.backends.cuda.matmul.fp32_precision = args.fp32_precision
        torch.backends.cudnn.conv.fp32_precision = args.fp32_precision  # type: ignore[attr-defined]
    if args.clear:
        plans.cache_file(device).unlink(missing_ok=True)
        plans.forget()
    try:
        winners = measure.tune_layers(
            layers, dtype, weights, device, lambda layer: print(f"measuring {layer} …", flush=True)
        )
    except torch.AcceleratorError as error:
        return fail(f"tune: the GPU failed, nothing is stored: {str(error).splitlines()[0]}")
    for problem, plan in winners.items():
        sizes = f"m={problem.m} n={problem.n} k={problem.k}"
        print(f"{problem.kernel} {sizes}: {plan.mode}, {plan.tile}, splits {plan.splits}")
    print(f"stored in {plans.save(winners, device)}")
    return 0


def _linear_layer(text: str) -> Any:
    from wnfused.kernels.triton.measure import Layer

    try:
        batch, inputs, outputs = (int(part) for part in text.split(","))
        if min(batch, inputs, outputs) < 1:
            raise ValueError
    except ValueError:
        raise ValueError(f"--linear: expected three positive integers M,IN,OUT, got {text!r}") from None
    return Layer("linear", batch, inputs, outputs)
