"""Claims with their measured value, so that one that no longer holds is seen at once."""

from __future__ import annotations

from typing import Any


def bar(name: str, value: float, target: float, unit: str, ok: bool | None = None) -> dict[str, Any]:
    """A claim: `value` is to be at least `target`, unless `ok` says otherwise."""
    return {"name": name, "value": value, "target": target, "unit": unit, "ok": value >= target if ok is None else ok}
