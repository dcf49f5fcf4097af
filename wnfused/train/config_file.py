"""Settings from a YAML or TOML file, by the names of Config's fields; ``preset`` names the preset to start from."""

import sys
from pathlib import Path
from typing import Any

from wnfused.extras import not_installed
from wnfused.train.errors import RunError


def read(path: Path) -> dict[str, Any]:
    readers = {".toml": _toml, ".yaml": _yaml, ".yml": _yaml}
    if path.suffix not in readers:
        raise RunError(f"--config: expected a file named .toml, .yaml or .yml, got {path}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"--config: cannot read {path}: {_reason(error)}") from None
    values = readers[path.suffix](text, path)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise RunError(f"--config: {path}: expected settings like `epochs`, got {type(values).__name__}")
    return values


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _toml(text: str, path: Path) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError:
            raise RunError(f"--config: {path}: {not_installed('tomli')}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RunError(f"--config: {path} is not valid TOML: {error}") from None


def _yaml(text: str, path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise RunError(f"--config: {path}: {not_installed('yaml')}") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RunError(f"--config: {path} is not valid YAML: {' '.join(str(error).split())}") from None
