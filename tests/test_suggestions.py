"""Suggestions for mistyped names."""

from wnfused.suggestions import did_you_mean, nearest


def test_nearest() -> None:
    assert nearest("smok", ["resnet", "smoke"]) == "smoke"
    assert nearest("xyz", ["resnet", "smoke"]) is None
    assert nearest("cifr", ["cifar10"], cutoff=0.9) is None


def test_did_you_mean() -> None:
    assert did_you_mean("smok", iter(["resnet", "smoke"])) == "did you mean 'smoke'?"
    assert did_you_mean("xyz", iter(["resnet", "smoke"])) == "expected one of resnet, smoke"
