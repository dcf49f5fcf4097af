"""Throughput of the data loader in images per second, to see whether it could limit training.

python -m benchmarks.loader [--data NAME] [--data-dir DIR] [--batch 128] [--threads 2] [--seconds 2]
"""

import argparse
import statistics
import time

import torch

from wnfused.data import NAMES, Augmentation, DataError, Dataset, Loader, Split, load

CASES = {
    "normalization only": Augmentation(),
    "crop 4, flip": Augmentation(crop=4, flip=True),
    "crop 4, flip, cutout 16": Augmentation(crop=4, flip=True, cutout=16),
}


def noise() -> Dataset:
    """Random bytes in the shape of CIFAR-10: the loader's speed does not depend on the content."""
    source = torch.Generator().manual_seed(0)
    images = torch.randint(256, (50_000, 3, 32, 32), dtype=torch.uint8, generator=source)
    split = Split(images, torch.randint(10, (len(images),), generator=source))
    return Dataset("noise", split, split, 10, (0.5,) * 3, (0.25,) * 3)


def milliseconds(loader: Loader, seconds: float) -> float:
    """Median time per batch."""
    times: list[float] = []
    start = time.perf_counter()
    for epoch in range(1_000_000):
        last = time.perf_counter()
        for _ in loader.epoch(epoch):
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now - start > seconds:
                return 1e3 * statistics.median(times)
    raise AssertionError("unreachable")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the throughput of the data loader.")
    parser.add_argument("--data", default="noise", choices=("noise", *NAMES), help="data set (default: random bytes)")
    parser.add_argument("--data-dir", help="directory with the data")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=2.0, help="measuring time per row (default: 2)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    try:
        data = noise() if args.data == "noise" else load(args.data, data_dir=args.data_dir)
        loaders = {
            (name, channels_last): Loader(
                data.train,
                args.batch,
                mean=data.mean,
                std=data.std,
                augmentation=augmentation,
                drop_last=True,
                channels_last=channels_last,
            )
            for name, augmentation in CASES.items()
            for channels_last in (False, True)
        }
    except DataError as error:
        parser.error(str(error))
    print(
        f"{data.name}: {len(data.train)} images, batch {args.batch}, {args.threads} threads, torch {torch.__version__}"
    )
    for (name, channels_last), loader in loaders.items():
        took = milliseconds(loader, args.seconds)
        layout = "channels-last" if channels_last else "contiguous"
        print(f"{name:<24} {layout:<14} {took:7.3f} ms/batch {1e3 * args.batch / took:10,.0f} images/s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
