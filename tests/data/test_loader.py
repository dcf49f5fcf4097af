"""Order, resuming, several processes and layouts of the loader's batches; the validation split."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor

from wnfused.data import Augmentation, DataError, Dataset, Loader, Split, first, hold_out, shrunk

EVERYTHING = Augmentation(crop=2, flip=True, cutout=3)
PLAIN = {"mean": (0.0,), "std": (1.0,)}


def numbered(count: int) -> Split:
    """Picture number i has the label i, and shows it."""
    images = torch.arange(count).to(torch.uint8).reshape(-1, 1, 1, 1).repeat(1, 1, 8, 8)
    return Split(images, torch.arange(count))


def batches(loader: Loader, epoch: int, start: int = 0) -> list[tuple[Tensor, Tensor]]:
    return list(loader.epoch(epoch, start))


def labels(loader: Loader, epoch: int) -> list[int]:
    return torch.cat([y for _, y in loader.epoch(epoch)]).tolist()


def same(a: list[tuple[Tensor, Tensor]], b: list[tuple[Tensor, Tensor]]) -> bool:
    pairs = zip(a, b, strict=True)
    return all(torch.equal(x1, x2) and torch.equal(y1, y2) for (x1, y1), (x2, y2) in pairs)


def test_the_first_images():
    assert first(numbered(9), 4).labels.tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError, match="first: count: expected at most 9, the number of images, got 10"):
        first(numbered(9), 10)


def test_shrunk_images_are_averages():
    images = torch.tensor([[0, 2, 10, 11], [4, 6, 12, 13], [1, 1, 0, 0], [1, 1, 0, 255]], dtype=torch.uint8)
    small = shrunk(Split(images.reshape(1, 1, 4, 4), torch.zeros(1, dtype=torch.int64)), 2)
    assert small.images.tolist() == [[[[3, 12], [1, 64]]]]  # 11.5 is rounded to even
    with pytest.raises(DataError, match="shrunk: size: expected a divisor of the images' 8 × 8 pixels, got 3"):
        shrunk(numbered(2), 3)


def test_an_epoch_shows_every_image_once():
    loader = Loader(numbered(103), 10, **PLAIN)
    assert len(loader) == 11 and len(batches(loader, 0)) == 11
    assert sorted(labels(loader, 0)) == list(range(103))
    for images, numbers in loader.epoch(0):
        assert images.dtype == torch.float32 and numbers.dtype == torch.int64
        assert torch.equal((images[:, 0, 0, 0] * 255).round().long(), numbers)


def test_order_is_a_function_of_seed_and_epoch_alone():
    orders = {
        (seed, epoch): labels(Loader(numbered(50), 8, seed=seed, **PLAIN), epoch) for seed in (0, 1) for epoch in (0, 1)
    }
    assert len({tuple(order) for order in orders.values()}) == 4
    torch.manual_seed(99)  # the global generator has no say, and is left alone
    state = torch.get_rng_state()
    again = Loader(numbered(50), 8, seed=1, augmentation=EVERYTHING, **PLAIN)
    assert labels(again, 0) == orders[1, 0] and labels(again, 1) == orders[1, 1]
    assert torch.equal(torch.get_rng_state(), state)


def test_numbers_of_numpy_are_numbers():
    one, other = Loader(numbered(50), 8, seed=3, **PLAIN), Loader(numbered(50), np.int64(8), seed=np.int32(3), **PLAIN)
    assert labels(one, 2) == labels(other, np.int64(2))
    assert torch.equal(hold_out(numbered(9), 0.3, 5)[1].labels, hold_out(numbered(9), 0.3, np.int64(5))[1].labels)


def test_without_shuffling_the_order_is_the_splits():
    assert labels(Loader(numbered(50), 8, shuffle=False, **PLAIN), 3) == list(range(50))


def test_last_batch():
    kept, dropped = Loader(numbered(21), 8, **PLAIN), Loader(numbered(21), 8, drop_last=True, **PLAIN)
    assert [kept.global_size(i) for i in range(len(kept))] == [8, 8, 5] == [len(y) for _, y in kept.epoch(0)]
    assert [dropped.global_size(i) for i in range(len(dropped))] == [8, 8] == [len(y) for _, y in dropped.epoch(0)]
    assert len(Loader(numbered(16), 8, **PLAIN)) == len(Loader(numbered(16), 8, drop_last=True, **PLAIN)) == 2
    with pytest.raises(ValueError, match="^Loader: batch: expected 0 to 2, got 3$"):
        kept.global_size(3)


@pytest.mark.parametrize("start", [0, 1, 5, 6, 7])
def test_an_epoch_can_start_anywhere(start):
    whole = batches(Loader(numbered(50), 8, augmentation=EVERYTHING, seed=5, **PLAIN), 4)
    rest = batches(Loader(numbered(50), 8, augmentation=EVERYTHING, seed=5, **PLAIN), 4, start)
    assert same(whole[start:], rest)


def test_augmentation_differs_between_batches_epochs_and_seeds():
    def images(seed: int, epoch: int) -> list[Tensor]:
        split = Split(torch.randint(256, (1, 1, 8, 8), dtype=torch.uint8).repeat(16, 1, 1, 1), torch.zeros(16).long())
        loader = Loader(split, 8, augmentation=EVERYTHING, seed=seed, **PLAIN)
        return [x for x, _ in loader.epoch(epoch)]

    torch.manual_seed(0)
    first = images(0, 0)
    torch.manual_seed(0)
    assert all(torch.equal(a, b) for a, b in zip(first, images(0, 0), strict=True))
    assert not torch.equal(first[0], first[1])
    for seed, epoch in ((0, 1), (1, 0)):
        torch.manual_seed(0)
        assert not torch.equal(first[0], images(seed, epoch)[0])


@pytest.mark.parametrize("world", [2, 3, 5])
def test_processes_together_see_what_one_sees(world):
    options = {"augmentation": EVERYTHING, "seed": 7, **PLAIN}
    alone = batches(Loader(numbered(29), 9, **options), 1)  # the last batch has 2 images, fewer than processes
    ranks = [batches(Loader(numbered(29), 9, rank=rank, world=world, **options), 1) for rank in range(world)]
    together = [(torch.cat([r[i][0] for r in ranks]), torch.cat([r[i][1] for r in ranks])) for i in range(len(alone))]
    assert same(alone, together)
    assert all(rank[-1][0].shape[1:] == (1, 8, 8) for rank in ranks)
    for i in range(len(alone)):
        sizes = [len(rank[i][1]) for rank in ranks]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("augmentation", [Augmentation(), EVERYTHING], ids=str)
def test_channels_last_is_a_matter_of_strides(augmentation):
    split = Split(torch.randint(256, (10, 3, 8, 6), dtype=torch.uint8), torch.arange(10))
    options = {"mean": (0.5,) * 3, "std": (0.2,) * 3, "augmentation": augmentation}
    plain, last = batches(Loader(split, 4, **options), 0), batches(Loader(split, 4, channels_last=True, **options), 0)
    assert same(plain, last)
    assert all(x.is_contiguous() for x, _ in plain)
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x, _ in last)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected an int >= 1, got 0"),
        ({"batch_size": -8}, "batch_size: expected an int >= 1, got -8"),
        ({"batch_size": 8.0}, "batch_size: expected an int, got 8.0"),
        ({"batch_size": True}, "batch_size: expected an int, got True"),
        ({"batch_size": 11}, "batch_size: expected at most the number of images, 10, got 11"),
        (
            {"batch_size": 11, "shuffle": False, "drop_last": True},
            "batch_size: expected at most the number of images, 10",
        ),
        ({"seed": 0.5}, "seed: expected an int, got 0.5"),
        ({"seed": None}, "seed: expected an int, got None"),
        ({"seed": "7"}, "seed: expected an int, got '7'"),
        ({"seed": True}, "seed: expected an int, got True"),
        ({"world": 0}, "world: expected an int >= 1, got 0"),
        ({"rank": -1}, "rank: expected an int >= 0, got -1"),
        ({"rank": 2, "world": 2}, "rank: expected 0 to 1 for world=2, got 2"),
        ({"mean": (0.5, 0.5)}, r"mean: expected 1 numbers, one for each channel, got \(0.5, 0.5\)"),
        ({"mean": (float("nan"),)}, r"mean: expected 1 numbers, one for each channel, got \(nan,\)"),
        ({"std": ()}, r"std: expected 1 numbers, one for each channel, got \(\)"),
        ({"std": (0.0,)}, r"std: expected numbers > 0, got \(0.0,\)"),
    ],
    ids=str,
)
def test_bad_arguments(arguments, message):
    with pytest.raises((ValueError, TypeError), match=f"^Loader: {message}"):
        Loader(numbered(10), **{"batch_size": 4, **PLAIN, **arguments})


def test_bad_epochs():
    loader = Loader(numbered(10), 4, **PLAIN)
    for arguments, message in (
        ((-1,), "number: expected an int >= 0, got -1"),
        ((1.5,), "number: expected an int, got 1.5"),
        ((0, -1), "start: expected an int >= 0, got -1"),
        ((0, 4), "start: expected 0 to 3, got 4"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"^Loader: {message}$"):
            loader.epoch(*arguments)  # at once, not when the first batch is asked for


def test_an_evaluation_may_ask_for_more_than_there_is():
    loader = Loader(numbered(10), 64, shuffle=False, **PLAIN)
    assert len(loader) == 1 and loader.global_size(0) == 10 and labels(loader, 0) == list(range(10))


def test_the_benchmark_runs(monkeypatch, capsys):
    from benchmarks import loader

    monkeypatch.setattr(loader, "noise", lambda: Dataset("noise", numbered(40), numbered(40), 40, (0.5,), (0.25,)))
    threads = str(torch.get_num_threads())
    monkeypatch.setattr("sys.argv", ["loader", "--batch", "8", "--threads", threads, "--seconds", "0.01"])
    assert loader.main() == 0
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("noise: 40 images, batch 8") and len(rows) == 6
    assert all(re.search(r"[\d.]+ ms/batch +[\d,]+ images/s$", row) for row in rows)


def test_no_images():
    empty = Split(torch.zeros(0, 1, 8, 8, dtype=torch.uint8), torch.zeros(0).long())
    with pytest.raises(DataError, match="split: expected at least one image"):
        Loader(empty, 1, **PLAIN)


def test_hold_out_cuts_the_split_in_two():
    split = numbered(100)
    train, validation = hold_out(split, 0.1, seed=3)
    assert len(train) == 90 and len(validation) == 10
    assert sorted(train.labels.tolist() + validation.labels.tolist()) == list(range(100))
    for part in (train, validation):
        assert torch.equal(part.images[:, 0, 0, 0].long(), part.labels)
    again = hold_out(split, 0.1, seed=3)[1].labels
    assert torch.equal(again, validation.labels)
    assert not torch.equal(hold_out(split, 0.1, seed=4)[1].labels, validation.labels)


@pytest.mark.parametrize("fraction", [0, 1, 0.0, 1.0, -0.1, 1.1, float("nan"), float("inf"), "0.1", None, True])
def test_fractions_outside_of_0_to_1(fraction):
    with pytest.raises(ValueError, match="^hold_out: fraction: expected a number between 0 and 1, got"):
        hold_out(numbered(10), fraction, seed=0)


def test_hold_out_needs_images_for_both_parts_and_a_whole_seed():
    for fraction in (0.01, 0.99):
        with pytest.raises(DataError, match=f"{fraction} of 10 images leaves one of the two parts empty"):
            hold_out(numbered(10), fraction, seed=0)
    with pytest.raises(TypeError, match="^hold_out: seed: expected an int, got 1.0$"):
        hold_out(numbered(10), 0.1, seed=1.0)


def test_splits_hold_bytes_and_as_many_labels():
    images, numbers = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.zeros(4).long()
    for bad in ((images.float(), numbers), (images[0], numbers), (images, numbers[:3]), (images, numbers.int())):
        with pytest.raises(ValueError, match="^Split: (images|labels): expected torch"):
            Split(*bad)
