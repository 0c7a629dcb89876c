"""Configuration for people: errors that name the nearest key, and the annotated YAML."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from pipelines.errors import UserError


def validation_error(error: ValidationError, root: type[BaseModel]) -> UserError:
    """The first problem as one line: key, what was given, what is expected or the nearest key."""
    errors = error.errors()
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    path = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        section = _model_at(root, path[:-1])
        known = {".".join([*path[:-1], k]): k for k in section.model_fields}
        if len(path) == 1:
            known |= {f"{s}.{k}": k for s in section.model_fields for k in _model_at(root, [s]).model_fields}
        return UserError("unknown key", where=".".join(path), fix=_nearest_key(path[-1], known))
    message = f"{first['msg'][0].lower()}{first['msg'][1:]}, got {first['input']!r:.80}"
    return UserError(message, where=".".join(path), fix=_meaning(root, path))


def nearest(name: str, known: Iterable[str]) -> str:
    """ "did you mean X?", or all names where none is near."""
    return _nearest_key(name, {k: k for k in known})


def annotated(config: BaseModel) -> str:
    """A configuration as YAML, each key under its meaning."""
    lines: list[str] = []
    for section in type(config).model_fields:
        options: BaseModel = getattr(config, section)
        lines.append(f"{section}:")
        for key, value in options.model_dump().items():
            meaning = type(options).model_fields[key].description or ""
            lines += [f"  # {line}" for line in meaning.splitlines()]
            text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
            lines.append(f"  {key}: {text.splitlines()[0]}")  # a scalar's second line is `...`
        lines.append("")
    return "\n".join(lines)


def _nearest_key(name: str, known: dict[str, str]) -> str:
    """`known` maps a key in full to its last part."""
    close = difflib.get_close_matches(name, known.values(), n=1, cutoff=0.5)
    for key, last in known.items():
        if close and last == close[0]:
            return f"did you mean {key}?"
    return f"known: {', '.join(k for k in known if '.' not in k) or ', '.join(known)}"


def _model_at(root: type[BaseModel], path: list[str]) -> type[BaseModel]:
    """The section that a path leads to; a part that names an entry of a dictionary leads to the entry's model."""
    model = root
    for part in path:
        field = model.model_fields.get(part)
        model = (_model_in(field.annotation) or model) if field else model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for m in map(_model_in, get_args(annotation)) if m), None)


def _meaning(root: type[BaseModel], path: list[str]) -> str:
    field = _model_at(root, path[:-1]).model_fields.get(path[-1])
    return " ".join((field.description or "").split()).rstrip(".") if field else ""


def reference_page(defaults: BaseModel) -> str:
    """`docs/configuration.md`."""
    return (
        "# Configuration\n\n"
        "Every key with its default. A preset, a YAML file (`--config`) and `--set section.key=value` change them, in\n"
        "this order. `thinwire train --preset P --show-config` shows it for a preset. Written by `make docs`.\n\n"
        f"```yaml\n{annotated(defaults).rstrip()}\n```\n"
    )
