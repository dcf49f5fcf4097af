"""Optional packages: which of them are missing, and the extra of wnfused that installs them."""

from importlib.util import find_spec

# The name to import: (the name to install, the extra of pyproject.toml that includes it)
EXTRAS = {
    "ale_py": ("ale-py", "rl"),
    "gymnasium": ("gymnasium", "rl"),
    "jinja2": ("jinja2", "train"),
    "matplotlib": ("matplotlib", "train"),
    "minatar": ("minatar", "rl"),
    "ray": ("ray", "cluster"),
    "rich": ("rich", "train"),
    "sklearn": ("scikit-learn", "train"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "tomli": ("tomli", "train"),
    "yaml": ("pyyaml", "train"),
}


def missing(*modules: str) -> list[str]:
    """Those of ``modules`` that are not installed; imports nothing."""
    return [name for name in modules if find_spec(name) is None]


def not_installed(*modules: str) -> str:
    """The end of an error message: what is not installed, and how to install it."""
    packages = " and ".join(EXTRAS[name][0] for name in modules)
    extras = ",".join(dict.fromkeys(EXTRAS[name][1] for name in modules))
    are = "is" if len(modules) == 1 else "are"
    return (
        f"{packages} {are} not installed; install the extra '{extras}': pip install -c constraints.txt \".[{extras}]\""
    )
