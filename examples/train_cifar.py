"""Train a weight-normalized ResNet from Python. Runs on scikit-learn's digits; --data cifar10 downloads CIFAR-10.

python examples/train_cifar.py [--data cifar10] [--epochs 2] [--run-dir runs/example]
"""

import argparse

from wnfused.train import Lines, load_best, preset, train


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a weight-normalized ResNet.")
    parser.add_argument("--data", default="digits", help="digits, cifar10 or cifar100")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--run-dir", default="runs/example")
    options = parser.parse_args()
    if options.data == "digits":
        config = preset("smoke", epochs=options.epochs)
    else:  # the paper's recipe, shortened: the schedule scales with the epochs
        settings = {"data": options.data, "epochs": options.epochs, "warmup_epochs": min(1.0, options.epochs)}
        config = preset("resnet56-cifar10", **settings)
    result = train(config, options.run_dir, progress=Lines())
    print(result.status if result.test_accuracy is None else f"test accuracy {result.test_accuracy:.1%}")
    model = load_best(options.run_dir)  # the weights of the best epoch
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters; `wnfused report {options.run_dir}` draws curves")


if __name__ == "__main__":
    main()
