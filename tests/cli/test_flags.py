"""The library's errors name Python arguments; the command line translates them to flags."""

import pytest

from wnfused.cli.flags import in_flags

ARGUMENTS = ("run_dir", "resume", "force", "data_dir", "batch_size", "data", "lr")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "run_dir: 'runs/a' already exists; pass resume=True to continue it or force=True to replace it",
            "--run-dir: 'runs/a' already exists; pass --resume to continue it or --force to replace it",
        ),
        ("resume, force: both are set", "--resume, --force: both are set"),
        ("cifar10: no. Pass download=True, or copy it", "cifar10: no. Drop --no-download, or copy it"),
        ("pass download=True or data_dir", "drop --no-download or --data-dir"),
        ("batch_size: expected at most 8, got 9", "--batch-size: expected at most 8, got 9"),
        ("lr: expected a number, got 'data'", "--lr: expected a number, got 'data'"),
        ("/tmp/data_dir/x: no such file", "/tmp/data_dir/x: no such file"),
        ("'run_dir': unknown; the data is lost: resume", "'run_dir': unknown; the data is lost: resume"),
        ("loss=True is not an argument", "loss=True is not an argument"),
        ("no argument here", "no argument here"),
    ],
)
def test_arguments_become_flags(message: str, expected: str) -> None:
    assert in_flags(message, ARGUMENTS) == expected
