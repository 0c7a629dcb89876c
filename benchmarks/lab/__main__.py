"""The command `python -m benchmarks.lab`."""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from benchmarks.lab import inside, lab, status
from pipelines.errors import UserError

USER_ERROR, INTERRUPTED = 2, 130
HOST = click.argument("host", type=int)
PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""Options after the command's name are the command's."""
_SIZE = [
    click.option("--hosts", default=2, show_default=True, help="How many."),
    click.option("--rate", default="none", show_default=True, help="Of each link and direction: 50mbit, 1gbit, none."),
    click.option("--cpus", default=1, show_default=True, help="CPUs that each Ray node offers."),
    click.option("--ray/--no-ray", default=True, show_default=True, help="Start a Ray node on each host."),
]


def main() -> None:
    """Entry point. A user's mistake is one line on stderr and exit code 2."""
    # So that a lab that is being made is cleared away.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        cli(standalone_mode=False, prog_name="python -m benchmarks.lab")
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(USER_ERROR)
    except click.ClickException as error:
        error.show()
        sys.exit(USER_ERROR)
    except (KeyboardInterrupt, click.Abort):
        print("lab: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)


def examples(*lines: str) -> dict[str, Any]:
    """Keyword arguments of a command whose help ends with examples."""
    return {"epilog": "\b\nExample:\n" + "\n".join(f"  python -m benchmarks.lab {line}" for line in lines)}


def command_argument(command: Callable) -> Callable:
    """The command to run, with or without `--` before it."""

    def without_dashes(_: click.Context, __: click.Parameter, parts: tuple[str, ...]) -> tuple[str, ...]:
        parts = parts[1:] if parts[0] == "--" else parts
        if not parts:
            raise click.UsageError("no command after --")
        return parts

    argument = click.argument(
        "command", callback=without_dashes, nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND..."
    )
    return argument(command)


def size_options(command: Callable) -> Callable:
    for option in reversed(_SIZE):
        command = option(command)
    return command


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    **examples("up --hosts 4 --rate 100mbit", "exec 0 -- thinwire train --preset smoke", "rate 1gbit", "down"),
)
def cli() -> None:
    """Several hosts with rate-limited links on this machine, with a Ray cluster over them. Needs root."""


@cli.command(**examples("up --hosts 4 --rate 100mbit", "up --hosts 2 --no-ray"))
@size_options
def up(hosts: int, rate: str, cpus: int, ray: bool) -> None:
    """Bring a lab up; it stays until `down`."""
    lab.bring_up(hosts, rate, cpus=cpus, ray=ray, owner=None, lab_id=uuid.uuid4().hex)
    click.echo(status.text(status.current()))


@cli.command(**examples("down"))
def down() -> None:
    """End the lab with all that runs in it, or what is left of one."""
    click.echo("the lab is down" if lab.bring_down() else "no lab was up")


@cli.command(**examples("rate 50mbit", "rate none"))
@click.argument("rate")
def rate(rate: str) -> None:
    """Change the rate of all links.

    In place, under running jobs too, and also from within a host.
    """
    lab.set_rate(rate)


@cli.command(
    "exec",
    context_settings=PASSED_ON,
    **examples("exec 0 -- thinwire train --preset smoke", "exec 1 -- ip addr", "exec 0 -- bash"),
)
@HOST
@command_argument
def exec_(host: int, command: tuple[str, ...]) -> None:
    """Run a command in a host.

    It runs in the current folder and reads this terminal; its exit code is returned. RAY_ADDRESS names the lab's
    cluster, so that `thinwire` and `ray job submit` use it.
    """
    line, environment = lab.command_in(host, command)
    os.execve(line[0], line, environment)


@cli.command("status", **examples("status", "status --json lab.json"))
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write it to FILE as well.")
def status_(json_file: Path | None) -> None:
    """Hosts, addresses, links, Ray nodes and traffic."""
    found = status.current()
    click.echo(status.text(found))
    if json_file:
        json_file.write_text(json.dumps(found, indent=1) + "\n")


@cli.command(**examples("link 2 down", "link 2 up"))
@HOST
@click.argument("state", type=click.Choice(["up", "down"]))
def link(host: int, state: str) -> None:
    """Cut a host off, or plug it in again."""
    lab.set_link(host, state == "up")


@cli.command(**examples("crash 2"))
@HOST
def crash(host: int) -> None:
    """End all processes of a host at once."""
    lab.crash(host)


@cli.command(**examples("rejoin 2"))
@HOST
def rejoin(host: int) -> None:
    """Boot a host anew, plugged in and with a Ray node."""
    lab.rejoin(host)


@cli.command(
    context_settings=PASSED_ON,
    **examples("run --hosts 4 --rate 100mbit -- thinwire train --preset smoke"),
)
@size_options
@command_argument
def run(hosts: int, rate: str, cpus: int, ray: bool, command: tuple[str, ...]) -> None:
    """Up, a command in host 0, and down whatever happens."""
    with lab.Lab(hosts, rate, cpus=cpus, ray=ray) as there:
        process = there.popen(0, command)
        signal.pthread_sigmask(signal.SIG_BLOCK, inside.FORWARDED | {signal.SIGCHLD})
        process.returncode = inside.forward_signals(process.pid)
    inside.end_like(process.returncode)


if __name__ == "__main__":
    main()
