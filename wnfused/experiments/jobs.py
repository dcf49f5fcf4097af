"""One unit of work of an experiment: a function by name and its settings, which any process or machine can run."""

import hashlib
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Outcome = dict[str, Any]  # JSON: numbers, texts, lists


@dataclass(frozen=True)
class Job:
    """``function`` is "module:name" inside ``wnfused.experiments``; it takes the settings and returns an outcome."""

    function: str
    settings: Mapping[str, Any] = field(hash=False)

    @property
    def key(self) -> str:
        """Equal jobs have equal keys, on every machine and in every version of this file."""
        text = json.dumps([self.function, self.settings], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def run(self, data_dir: str | None = None) -> Outcome:
        module, _, name = self.function.partition(":")
        function = getattr(importlib.import_module(f"wnfused.experiments.{module}"), name)
        outcome: Outcome = function(dict(self.settings), data_dir)
        return outcome
