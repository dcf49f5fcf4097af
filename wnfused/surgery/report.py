"""``ConvertReport``: what ``convert``, ``apply``, ``fold`` and ``to_torch`` return."""

from dataclasses import dataclass, field
from typing import Any, NoReturn


@dataclass(eq=False)
class ConvertReport:
    """The names of the layers that were changed, the reason for each layer that was skipped, and notes on the model.

    The model itself is changed in place and not returned. A report equals its ``count`` (``fold(model) == 3``), is
    false if nothing was changed, and raises an explanation where it is used as a model (``model = fold(model)``).
    """

    converted: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    action: str = "converted"
    notes: list[str] = field(default_factory=list)
    norms_only: list[str] = field(default_factory=list)  # skipped, but their norm uses wnfused's operator

    @property
    def count(self) -> int:
        return len(self.converted)

    def __str__(self) -> str:
        lines = [f"{self.action} {self.count} layer{'s' * (self.count != 1)}, skipped {len(self.skipped)}"]
        for name, reason in self.skipped.items():
            operator = "; wnfused's operator computes its norm" if name in self.norms_only else ""
            lines.append(f"  {name or '(the model itself)'}: {reason}{operator}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def __index__(self) -> int:
        return self.count

    def __bool__(self) -> bool:
        return self.count > 0

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ConvertReport):
            return (self.converted, self.skipped) == (other.converted, other.skipped)
        return self.count == other if isinstance(other, int) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(self._misuse())

    def __getitem__(self, index: Any) -> NoReturn:  # iteration comes here as well
        raise TypeError(self._misuse())

    def __getattr__(self, name: str) -> NoReturn:
        """Any name may be the model's: one of ``nn.Module``, a layer, or a method such as ``generate``."""
        if name.startswith("_"):  # looked up by copy, pickle and notebooks
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        raise AttributeError(f"{name}: {self._misuse()}")

    def _misuse(self) -> str:
        return (
            "this is the report of wnfused, not the model; the model was changed in place, so write "
            "`wnfused.fold(model)` instead of `model = wnfused.fold(model)` (likewise convert, apply and to_torch)"
        )
