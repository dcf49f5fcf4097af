"""``wnfused doctor``: the report on a model, and errors for models that cannot be created or run."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import wnfused
from wnfused import cli
from wnfused.diagnostics import doctor
from wnfused.init.layers import find_layers


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's module with a few models."""
    (tmp_path / "my_models.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "from torch.nn.utils.parametrizations import weight_norm\n"
        "def net(width, bias=True):\n"
        "    first = weight_norm(nn.Linear(4, width, bias))\n"
        "    return nn.Sequential(first, nn.ReLU(), weight_norm(nn.Linear(width, 2)))\n"
        "made = net(3)\n"
        "number = 3\n"
        "def nothing():\n"
        "    return 7\n"
        "def old(width):\n"
        "    norm = torch.nn.utils.weight_norm\n"
        "    return nn.Sequential(norm(nn.Linear(4, width)), nn.ReLU(), norm(nn.Linear(width, 2)))\n"
        "def plain():\n"
        "    return nn.Linear(4, 4)\n"
        "class Spare(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.used, self.spare = weight_norm(nn.Linear(4, 2)), weight_norm(nn.Linear(4, 2))\n"
        "        self.memory = weight_norm(nn.LSTM(4, 4), 'weight_hh_l0')\n"
        "    def forward(self, x):\n"
        "        return {'logits': self.used(x), 'hidden': [x]}\n"
        "class Tokens(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.table = nn.Embedding(10, 8)\n"
        "        self.first, self.last = weight_norm(nn.Linear(8, 8)), weight_norm(nn.Linear(8, 2))\n"
        "    def forward(self, ids, mask=None):\n"
        "        h = self.table(ids) if mask is None else self.table(ids) * mask[..., None]\n"
        "        return self.last(torch.relu(self.first(h)))\n"
        "class Block(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer, self.last = weight_norm(nn.Linear(4, 4)), weight_norm(nn.Linear(4, 4))\n"
        "    def forward(self, x):\n"
        "        return x + self.last(torch.relu(self.layer(x)))\n"
        "class Deep(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        inner = nn.Module()\n"
        "        inner.blocks = nn.Sequential(Block(), Block(), weight_norm(nn.Linear(4, 2)))\n"
        "        self.a_module_with_a_long_name = nn.Module()\n"
        "        self.a_module_with_a_long_name.another_module_with_a_long_name = inner\n"
        "    def forward(self, x):\n"
        "        return self.a_module_with_a_long_name.another_module_with_a_long_name.blocks(x)\n"
    )
    (tmp_path / "broken.py").write_text("def net(:\n")
    monkeypatch.chdir(tmp_path)
    yield "my_models"
    sys.modules.pop("my_models", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["doctor", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_sections_of_the_report(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, page, _ = run(capsys, f"{module}:net(5, bias=False)", "--input", "6,4")
    assert code == 0
    assert "0 wnfused layers, 2 under torch's weight_norm, 39 parameters in total" in page
    assert "before_relu" in page and "‖h‖/‖x‖" in page
    assert "converted 2 layers, skipped 0" in page
    for title in ("Layers", "Roles and gains", "Signal", "Dead rows", "Dtypes and layouts", "What fusing would save"):
        assert f"{title}\n{'-' * len(title)}\n" in page


def test_a_module_object_and_a_plot(module: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, page, _ = run(capsys, f"{module}:made", "--input", "6,4", "--plot", str(tmp_path / "signal.png"))
    assert code == 0 and "plot: " in page
    assert (tmp_path / "signal.png").stat().st_size > 5000


def test_a_plot_without_matplotlib_is_refused_first(
    module: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, page, message = run(capsys, f"{module}:made", "--input", "6,4", "--plot", "signal.png")
    install = "install the extra 'train': pip install -c constraints.txt \".[train]\""
    assert (code, page) == (2, "")
    assert message == f"wnfused: doctor: --plot: matplotlib is not installed; {install}\n"


@pytest.mark.parametrize(
    ("file", "code", "error"),
    [
        ("/proc/signal.png", 1, "cannot write /proc/signal.png: "),
        ("signal.xyz", 2, "cannot write signal.xyz: Format 'xyz' is not supported"),
    ],
)
def test_a_plot_that_cannot_be_written_is_one_line(
    module: str, capsys: pytest.CaptureFixture[str], file: str, code: int, error: str
) -> None:
    found, page, message = run(capsys, f"{module}:made", "--input", "6,4", "--plot", file)
    assert found == code and "Roles and gains" in page and "plot: " not in page
    assert message.startswith(f"wnfused: doctor: --plot: {error}") and message.count("\n") == 1


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("my_models.py/signal.png", "the directory does not exist"),
        ("no/such/signal.png", "the directory does not exist"),
        ("directory.png", "it is a directory"),
    ],
)
def test_a_place_that_cannot_hold_a_plot_is_refused_first(
    module: str, capsys: pytest.CaptureFixture[str], file: str, error: str
) -> None:
    Path("directory.png").mkdir()
    found = run(capsys, f"{module}:made", "--input", "6,4", "--plot", file)
    assert found == (2, "", f"wnfused: doctor: --plot: cannot write {file}: {error}\n")
    assert not Path("no").exists()


@pytest.mark.parametrize(
    "inputs",
    [
        ["ids=3,5:int10"],
        ["3,5:int10"],
        ["3,5:int10", "3,5"],
        ["ids=3,5:int10", "mask=3,5"],
        ["3:int10"],
    ],
)
def test_integer_and_keyword_inputs(module: str, capsys: pytest.CaptureFixture[str], inputs: list[str]) -> None:
    code, page, message = run(capsys, f"{module}:Tokens", *(word for text in inputs for word in ("--input", text)))
    assert (code, message) == (0, "")
    assert "before_relu" in page and "not measured" not in page and "nan" not in page


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        (["3,5:int"], "expected sizes like 8,3,32,32 or tokens=2,16:int50, got '3,5:int'"),
        (["3,x"], "expected sizes like 8,3,32,32 or tokens=2,16:int50, got '3,x'"),
        (["3,5", "mask=3,5"], "expected names for all inputs or for none, got 3,5 and mask=3,5"),
    ],
)
def test_inputs_that_cannot_be_read(
    module: str, capsys: pytest.CaptureFixture[str], inputs: list[str], error: str
) -> None:
    found = run(capsys, f"{module}:Tokens", *(word for text in inputs for word in ("--input", text)))
    assert found == (2, "", f"wnfused: doctor: --input: {error}\n")


@pytest.mark.filterwarnings("ignore:explain. unsupported layers")
@pytest.mark.parametrize("model", ["net(5)", "Spare", "Deep"])
def test_the_report_fits_80_columns(module: str, capsys: pytest.CaptureFixture[str], model: str) -> None:
    code, page, _ = run(capsys, f"{module}:{model}", "--input", "6,4")
    assert code == 0 and max(map(len, page.splitlines())) <= 80
    assert model != "Deep" or "a_module_with_a_long_name.another_module_with_a_long_name.blocks.0.layer" in page


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_torchs_old_weight_norm(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    """copy.deepcopy fails on such a model."""
    code, page, _ = run(capsys, f"{module}:old(5)", "--input", "6,4")
    assert code == 0 and "before_relu" in page and "converted 2 layers, skipped 0" in page
    assert "second copy of the weights" in page


def test_an_uncalled_layer_and_an_unsupported_one(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The report says what is unknown and shows the rest; the model returns a dict."""
    with (
        pytest.warns(UserWarning, match="explain: unsupported layers were left unchanged"),
        pytest.warns(UserWarning, match="infer_roles: 'spare': not called"),
    ):
        code, page, _ = run(capsys, f"{module}:Spare", "--input", "6,4")
    assert code == 0 and "not called, and left unchanged: 'spare'" in page
    assert "not examined: memory (LSTM)" in page and "used" in page.split("Signal")[1]


def test_16_bit_models_get_a_16_bit_example() -> None:
    model = nn.Sequential(wnfused.WNLinear(4, 3), nn.ReLU()).bfloat16()
    page = doctor.examine(model, torch.randn(5, 4))
    assert "before_relu" in page and "weights in torch.bfloat16" in page and "not measured" not in page


def test_the_model_is_not_changed() -> None:
    model = nn.Sequential(wnfused.WNLinear(4, 3), nn.BatchNorm1d(3), nn.Dropout().eval())
    before, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    for example in (torch.randn(5, 4, generator=torch.Generator()), torch.zeros(5, 7)):
        if example.shape[1] == 4:
            doctor.examine(model, example)
        else:
            with pytest.raises(ValueError, match="does not run"):
                doctor.examine(model, example)
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        assert [m.training for m in model.modules()] == [True, True, True, False]
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        assert all(p.grad is None for p in model.parameters()) and torch.equal(torch.get_rng_state(), random)


def test_dead_rows_and_dtypes() -> None:
    model = nn.Sequential(wnfused.WNLinear(4, 3), wnfused.WNLinear(3, 2).bfloat16())
    with torch.no_grad():
        model[0].weight_v[1] = 0.0
        model[0].weight_g[2] = 0.0
    assert doctor._dead_rows(find_layers("test", model)[0]) == "0: v = 0 in 1 and g = 0 in 1 of 3 rows"
    assert "1: weights in torch.bfloat16" in doctor._problems(find_layers("test", model)[0], torch.randn(2, 4))
    assert doctor._fusing(model, find_layers("test", model)[0]) == "nothing: no layer is under torch's weight_norm"


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (1.0, "is kept forward"),
        (1e-3, "vanishes forward"),
        (1e3, "explodes forward"),
        (float("nan"), "is NaN forward"),
    ],
)
def test_verdict(forward: float, words: str) -> None:
    assert words in doctor._verdict(forward, 1.0)


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("net", "expected package.module:name"),
        ("no_such_module_here:net", "'no_such_module_here' cannot be imported"),
        ("my_models:nix", "'my_models' has no 'nix'"),
        ("my_models:net(import os)", "expected a name, or a call with literals"),
        ("my_models:net(open('x'))", "expected a name, or a call with literals"),
        ("my_models:nothing()", "expected an nn.Module, got int"),
        (
            "my_models:net()",
            "'my_models:net()' cannot be created: TypeError: net() missing 1 required positional argument",
        ),
        ("my_models:number", "cannot be created: TypeError: 'int' object is not callable"),
        ("broken:net", "'broken' cannot be imported: SyntaxError"),
        ("my_models:plain", "model: expected weight-normalized layers, found none in Linear"),
        ("wnfused:WNLinear(0, 4)", "layer '': fan_in: expected > 0, got 0 (weight of shape (4, 0))"),
    ],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_models_that_cannot_be_created(module: str, capsys: pytest.CaptureFixture[str], spec: str, error: str) -> None:
    code, _, message = run(capsys, spec, "--input", "6,4")
    assert code == 2 and error in message and message.count("\n") == 1


def test_an_input_of_the_wrong_shape(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, message = run(capsys, f"{module}:made", "--input", "6,5")
    assert code == 1 and "--input 6,5" in message and "does not run" in message
    code, _, message = run(capsys, f"{module}:made", "--input", "six")
    assert code == 2 and "--input: expected sizes like 8,3,32,32 or tokens=2,16:int50, got 'six'" in message
