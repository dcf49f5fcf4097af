"""The comparison itself: it must fail where a result is wrong."""

import pytest
import torch

from tests.support.reference import assert_close, errors


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_zeros_fail_the_comparison(dtype: torch.dtype) -> None:
    expected = torch.randn(5, 7, dtype=torch.float64) * 1e-6  # small values must not hide in an absolute tolerance
    with pytest.raises(AssertionError, match="errors"):
        assert_close(torch.zeros(5, 7, dtype=dtype), expected)


def test_nan_fails_the_comparison() -> None:
    with pytest.raises(AssertionError, match="errors"):
        assert_close(torch.full((3,), torch.nan), torch.ones(3))


def test_one_wrong_element_among_many_fails() -> None:
    expected = torch.randn(100_000, dtype=torch.float64)
    actual = expected.float()
    actual[7] += 0.01
    with pytest.raises(AssertionError, match="errors"):
        assert_close(actual, expected)


def test_shape_is_compared() -> None:
    with pytest.raises(AssertionError, match="shape"):
        assert_close(torch.ones(3), torch.ones(3, 1))


def test_errors_are_relative() -> None:
    assert errors(torch.tensor([2.0, 4.0]), torch.tensor([2.0, 5.0])) == pytest.approx((0.2, (0.5 / 14.5) ** 0.5))


def test_fresh_memory_is_nan_in_tests() -> None:
    assert torch.empty(1000).isnan().all()
