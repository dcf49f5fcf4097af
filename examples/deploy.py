"""Deploy: fold the weight norm into plain layers, export with torch.export, and run the model in ONNX Runtime.

python examples/deploy.py [--output model.onnx]    # ONNX needs the extra: pip install -c constraints.txt ".[deploy]"
"""

import argparse
from importlib.util import find_spec

import torch

import wnfused


def main() -> None:
    parser = argparse.ArgumentParser(description="Fold, export and run in ONNX Runtime.")
    parser.add_argument("--output", default="model.onnx")
    options = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(2, 3, 32, 32)
    model = wnfused.models.resnet20().eval()
    wnfused.init.robust_(model, x)
    with torch.no_grad():
        expected = model(x)

    print(f"{wnfused.fold(model)}: plain torch.nn layers now")
    program = torch.export.export(model, (x,))
    with torch.no_grad():
        print(f"torch.export: largest difference {(program.module()(x) - expected).abs().max():.1e}")

    if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]:
        print(f'{", ".join(missing)} not installed: pip install -c constraints.txt ".[deploy]"')
        return
    import onnxruntime

    torch.onnx.export(program, f=options.output, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(options.output, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    print(f"ONNX Runtime: largest difference {(torch.from_numpy(y) - expected).abs().max():.1e}")


if __name__ == "__main__":
    main()
