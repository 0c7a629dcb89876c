"""The file of `thinwire calibrate`: constants with their units in their names, and what they were measured with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.config import RunConfig
from cache.constants import Constants
from pipelines.errors import UserError

FORMAT = "thinwire-calibration"
FIX = "write one with `thinwire calibrate`"


def measured_with(config: RunConfig) -> dict[str, Any]:
    """What of a configuration the constants depend on."""
    return {
        "embedding_dim": config.model.embedding_dim,
        "table_dims": config.model.table_dims,
        "row_bound": config.exchange.row_bound,
        "gradient_bound": config.exchange.gradient_bound,
        "dense": config.exchange.dense,
    }


def write_calibration(file: Path, constants: Constants, config: RunConfig, about: dict[str, Any]) -> dict[str, Any]:
    """Returns what was written."""
    found = {
        "format": FORMAT,
        "version": 1,
        "about": about,
        "measured_with": measured_with(config),
        "constants": constants.to_dict(),
    }
    file.write_text(json.dumps(found, indent=1) + "\n")
    return found


def read_calibration(file: Path, config: RunConfig) -> tuple[Constants, list[str]]:
    """The constants, and lines about what differs from the configuration.

    Raises:
        UserError: the file cannot be read, or is no calibration.
    """
    try:
        data = json.loads(file.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "is not JSON"
        raise UserError(f"cannot read it: {what}", where=f"--calibration {file}", fix=FIX) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != 1:
        raise UserError("is no calibration of this version", where=f"--calibration {file}", fix=FIX)
    try:
        constants = Constants.from_dict(data["constants"])
    except (KeyError, ValueError) as error:
        raise UserError(f"bad constants: {error}", where=f"--calibration {file}", fix=FIX) from error
    before, now = data.get("measured_with", {}), measured_with(config)
    differ = [f"{key} {before.get(key)}, now {now[key]}" for key in now if before.get(key) != now[key]]
    return constants, [f"calibrated with {text}: predictions are rough" for text in differ]
