"""The streaming benchmark compares generators that compute the same function."""

import pytest
import torch

from wnfused.benchmarks import streaming


def test_the_variants_compute_the_same_waveform() -> None:
    torch.manual_seed(0)
    plain, mel = streaming.Generator(32).eval(), torch.randn(1, 80, 2)
    with torch.no_grad():
        expected = plain(mel)
        assert expected.shape == (1, 1, 512) and expected.std() > 1e-3
        for name, model in streaming.variants(plain).items():
            torch.testing.assert_close(model(mel), expected, rtol=1e-4, atol=1e-5, msg=name)


def test_a_row_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    streaming.main(["--channels", "16", "--frames", "1", "--rounds", "1", "--threads", str(threads)])
    assert capsys.readouterr().out.splitlines()[-1].startswith("| 1 | ")
