"""What the subcommands share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from pipelines.errors import UserError

PATH = click.Path(path_type=Path)
WIDE = 140
"""Columns of the tables where the output is no terminal."""
json_option = click.option(
    "--json", "json_file", type=PATH, metavar="FILE", help="Write the result for machines to FILE."
)


def config_options(command: Callable) -> Callable:
    """--preset, --config and --set."""
    options = [
        click.option("--preset", help="smoke, demo, kaggle or terabyte: a ready configuration."),
        click.option("--config", "config_file", type=PATH, metavar="FILE.yaml", help="Changes to the preset."),
        click.option(
            "--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Change one key; repeatable."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def examples(*lines: str) -> dict[str, Any]:
    """Keyword arguments of a command whose help ends with examples."""
    return {"epilog": "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)}


def check_json(file: Path | None) -> None:
    """Find out before hours of work that the result cannot be written."""
    if file is not None and not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise UserError("cannot write it", where=f"--json {file}", fix="name a file in a folder that exists")


def check_plot(file: Path) -> None:
    """The same for a picture."""
    if file.suffix not in (".png", ".svg", ".pdf") or not file.absolute().parent.is_dir():
        raise UserError("cannot draw it", where=f"--plot {file}", fix="name a .png in a folder that exists")


def wide_console() -> Console:
    """For tables of many columns."""
    return Console(width=None if sys.stdout.isatty() else WIDE)


def write_json(file: Path | None, result: dict[str, Any]) -> None:
    """Write a result where `--json` says."""
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result, indent=1, default=str) + "\n")
    except OSError as error:
        raise UserError(f"cannot write it: {error.strerror}", where=f"--json {file}") from error
