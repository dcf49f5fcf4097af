"""The speed of whole networks, relative to the network without normalization. ``wnfused bench --suite networks``.

python -m benchmarks.networks [--full] [--only TEXT] [--threads 2] [--seconds 6] [--json FILE] [--compare FILE]

A step is forward, loss, backward and SGD; SDF networks differentiate twice. ``--full`` adds the large networks, among
them EnCodec and DAC as transformers builds them.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import wnfused
from wnfused.benchmarks import suite
from wnfused.benchmarks.peers import PEERS, eikonal_step, inference, training_step, verify, whole_step, with_weight_norm
from wnfused.benchmarks.streaming import Generator
from wnfused.benchmarks.suite import NOISE, Result, results_of
from wnfused.diagnostics.timing import interleave
from wnfused.models import MLP, WRN, resnet56, resnet110

Step = Callable[[nn.Module, Tensor], Callable[[], None]]


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], nn.Module]  # without normalization
    shape: tuple[int, ...]
    step: Step = whole_step
    batch_norm: Callable[[], nn.Module] | None = None
    quick: bool = False


def sdf() -> nn.Module:
    """A signed distance function: eight layers of 256 with softplus."""
    sizes = [3, *[256] * 8, 1]
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*itertools.chain(*((layer, nn.Softplus(beta=100)) for layer in layers[:-1])), layers[-1])


def codec(name: str) -> Callable[[], nn.Module]:
    """Encoder and decoder of a codec in its published size, with random weights."""

    def make() -> nn.Module:
        import transformers

        model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")())
        wnfused.fold(model)  # transformers normalizes some layers itself
        return nn.Sequential(model.encoder, model.decoder)

    return make


def mlp(layers: int) -> Callable[[], nn.Module]:
    return lambda: MLP(layers, 512, inputs=512, norm="none")


def residual(network: Callable[..., nn.Module], batch: int, name: str, **options: object) -> Case:
    return Case(
        f"{name}, batch {batch}",
        lambda: network(norm="none"),
        (batch, 3, 32, 32),
        batch_norm=lambda: network(norm="batch"),
        **options,  # type: ignore[arg-type]
    )


CASES = (
    Case("MLP of 20 layers of 512, batch 128", mlp(20), (128, 512), quick=True),
    Case("MLP of 200 layers of 512, batch 128", mlp(200), (128, 512)),
    residual(resnet110, 8, "ResNet-110", quick=True),
    residual(resnet110, 128, "ResNet-110"),
    residual(resnet56, 128, "ResNet-56"),
    residual(lambda norm: WRN(16, 4, norm=norm), 8, "WRN-16-4", quick=True),
    residual(lambda norm: WRN(16, 4, norm=norm), 32, "WRN-16-4", quick=True),
    Case("HiFi-GAN V2 generator, 32 frames, batch 4", lambda: Generator(128), (4, 80, 32), training_step, quick=True),
    Case("HiFi-GAN V2 generator, 4 frames, batch 1", lambda: Generator(128), (1, 80, 4), training_step, quick=True),
    Case("HiFi-GAN V1 generator, 32 frames, batch 1", lambda: Generator(512), (1, 80, 32), training_step),
    Case("EnCodec, 8000 samples, batch 1", codec("Encodec"), (1, 1, 8000), training_step),
    Case("DAC, 8000 samples, batch 1", codec("Dac"), (1, 1, 8000), training_step),
    Case("SDF MLP 8×256 with eikonal loss, batch 512", sdf, (512, 3), eikonal_step, quick=True),
    Case("SDF MLP 8×256 with eikonal loss, batch 4096", sdf, (4096, 3), eikonal_step),
)


def measure(case: Case, seconds: float) -> list[Result]:
    torch.manual_seed(0)
    plain, x = case.make(), torch.randn(case.shape)
    models = {peer: with_weight_norm(plain, peer) for peer in PEERS}
    verify(models, x[:2], gradients=False)
    models[NOISE] = with_weight_norm(plain, "plain")
    if case.batch_norm:
        models["batch norm"] = case.batch_norm()
    steps = {peer: case.step(model, x) for peer, model in models.items()}
    results = results_of(case.name, "step", interleave(steps, seconds=seconds))
    calls = {peer: inference(model.eval(), x) for peer, model in models.items()}
    return results + results_of(case.name, "inference", interleave(calls, seconds=seconds / 2))


def main(argv: Sequence[str] | None = None) -> None:
    parser = suite.parser(__doc__, full="all networks; default: those that take little time", seconds=6.0)
    options = parser.parse_args(argv)
    suite.run(CASES, lambda case: measure(case, options.seconds), options, "the plain network")


if __name__ == "__main__":
    main()
