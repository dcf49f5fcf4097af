"""Augmentation of batches against images that are augmented one by one, pixel by pixel, in plain Python."""

import pytest
import torch
from torch import Tensor

from wnfused.data import Augmentation, Loader, Split
from wnfused.data.augment import Draws, draw
from wnfused.data.seeds import generator

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
EVERYTHING = Augmentation(crop=4, flip=True, cutout=16)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def _has_device(request: pytest.FixtureRequest) -> None:
    if "cuda" in request.node.name and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")


def pictures(count: int, channels: int = 3, height: int = 32, width: int = 32) -> Split:
    source = torch.Generator().manual_seed(1)
    images = torch.randint(256, (count, channels, height, width), dtype=torch.uint8, generator=source)
    return Split(images, torch.arange(count))


def numbers(draws: Draws, i: int) -> list[int]:
    return [int(values[i]) for values in draws]


def reference(image: Tensor, augmentation: Augmentation, drawn: list[int], mean, std) -> Tensor:
    """One image, one pixel after the other."""
    channels, height, width = image.shape
    top, left, flipped, row, column = drawn
    first_row, first_column = row - augmentation.cutout // 2, column - augmentation.cutout // 2
    pixels, result = image.tolist(), torch.zeros(channels, height, width)
    for c in range(channels):
        scale = torch.tensor(1 / (255 * std[c]), dtype=torch.float32)
        shift = torch.tensor(-mean[c] / std[c], dtype=torch.float32)
        levels = (torch.arange(256, dtype=torch.float32) * scale + shift).tolist()  # what each byte becomes
        for y in range(height):
            for x in range(width):
                in_square = first_row <= y < first_row + augmentation.cutout
                if in_square and first_column <= x < first_column + augmentation.cutout:
                    continue
                source_x = width - 1 - x if augmentation.flip and flipped else x
                source_y = y
                if augmentation.crop:
                    source_y, source_x = y + top - augmentation.crop, source_x + left - augmentation.crop
                inside = 0 <= source_y < height and 0 <= source_x < width
                result[c, y, x] = levels[pixels[c][source_y][source_x] if inside else 0]
    return result


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("augmentation", "shape"),
    [
        (Augmentation(), (3, 32, 32)),
        (Augmentation(crop=4), (3, 32, 32)),
        (Augmentation(flip=True), (3, 32, 32)),
        (Augmentation(cutout=16), (3, 32, 32)),
        (Augmentation(crop=4, flip=True), (3, 32, 32)),
        (EVERYTHING, (3, 32, 32)),
        (EVERYTHING, (1, 28, 28)),
        (Augmentation(crop=3, flip=True, cutout=5), (2, 7, 11)),
        (Augmentation(crop=9, flip=True, cutout=40), (3, 6, 5)),
    ],
    ids=str,
)
def test_batches_are_what_images_one_by_one_are(augmentation, shape, device):
    channels, height, width = shape
    split, mean, std = pictures(11, *shape), MEAN[:channels], STD[:channels]
    loader = Loader(split, 8, mean=mean, std=std, augmentation=augmentation, seed=3, device=device)
    for batch, (images, labels) in enumerate(loader.epoch(2)):
        draws = draw(len(labels), height, width, augmentation.crop, generator("augmentation", 3, 2, batch))
        for i, label in enumerate(labels.tolist()):  # a picture's label is its number
            expected = reference(split.images[label], augmentation, numbers(draws, i), mean, std)
            assert torch.equal(images[i].cpu(), expected)


def test_every_position_is_drawn_and_equally_often():
    draws = draw(20_000, 32, 28, 4, generator("test"))
    for values, bound in zip(draws, (9, 9, 2, 32, 28), strict=True):
        share = torch.bincount(values, minlength=bound) / len(values)
        assert len(share) == bound
        assert share.sub(1 / bound).abs().max() < 5 * (1 / bound / len(values)) ** 0.5  # five standard deviations


def test_draws_of_one_kind_do_not_depend_on_the_other_kinds():
    split = pictures(8)
    options = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "shuffle": False}

    def one(augmentation: Augmentation) -> Tensor:
        return next(Loader(split, 8, augmentation=augmentation, **options).epoch(0))[0]

    whole, cut = one(Augmentation(crop=4, flip=True)), one(EVERYTHING)
    outside = cut != 0
    assert torch.equal(whole[outside], cut[outside])
    assert 0 < (~outside).float().mean() < 0.3


def test_pixels_are_normalized():
    split = pictures(400)
    images, _ = next(Loader(split, 400, mean=MEAN, std=STD).epoch(0))
    expected = (split.images.double() / 255).mean((0, 2, 3)).sub(torch.tensor(MEAN)).div(torch.tensor(STD))
    torch.testing.assert_close(images.double().mean((0, 2, 3)), expected, rtol=1e-5, atol=1e-5)


def test_cutout_leaves_the_mean():
    images, _ = next(Loader(pictures(64), 64, mean=MEAN, std=STD, augmentation=Augmentation(cutout=16)).epoch(0))
    cut = (images == 0).all(1).sum((1, 2))
    assert cut.max() == 256 and cut.min() >= 64  # a corner keeps a quarter of the square


def test_the_split_is_left_alone():
    split = pictures(20)
    before = split.images.clone()
    for _ in Loader(split, 8, mean=MEAN, std=STD, augmentation=EVERYTHING).epoch(0):
        pass
    assert torch.equal(split.images, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"crop": -1}, "crop: expected an int >= 0, got -1"),
        ({"crop": 4.0}, "crop: expected an int, got 4.0"),
        ({"crop": True}, "crop: expected an int, got True"),
        ({"cutout": -16}, "cutout: expected an int >= 0, got -16"),
        ({"cutout": None}, "cutout: expected an int, got None"),
        ({"flip": 1}, "flip: expected True or False, got 1"),
        ({"flip": "yes"}, "flip: expected True or False, got 'yes'"),
    ],
    ids=str,
)
def test_bad_augmentation(arguments, message):
    with pytest.raises((ValueError, TypeError), match=f"^Augmentation: {message}$"):
        Augmentation(**arguments)
