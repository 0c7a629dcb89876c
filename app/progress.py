"""A progress bar for work on data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TaskID


@contextmanager
def data_progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function of (stage, done, total), which moves the bar of that stage; silent off a terminal."""
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def advance(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield advance
