"""`thinwire analyze`: what errors in each table cost, and the bounds that follow from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

from app.config import RunConfig
from app.data import open_dataset
from app.progress import data_progress
from compression.bounds import CLASSES, Share, classify, relative_to_uniform, total, uniform
from pipelines.errors import UserError
from pipelines.profiler import Profiler, profile
from pipelines.table_profile import TableProfile
from pipelines.thin import compile_exchange

Row = dict[str, Any]
POLICIES = ("uniform", "paper", "classes", "each", "each-gradients")
"""In the order of `policies_of`."""
_AT = 0.032
"""Bound at which homogenisation is judged: near the middle one of the paper's."""


@dataclass(frozen=True)
class Policy:
    """Bounds of all tables, and what they come to by the curves."""

    name: str
    rows: Share
    gradients: Share


def run_analyze(
    config: RunConfig, *, steps: int, batches: int, policy: str, out: Path, console: Console
) -> dict[str, Any]:
    """Profile the tables, print what was found, and write the configuration that follows.

    Args:
        policy: of POLICIES, whose bounds are written.

    Returns:
        For `--json`: `tables`, `policies`, `config`, `out`.
    """
    if config.cluster.workers < 2:
        raise UserError("one worker exchanges nothing", where="cluster.workers", fix="use 2 or more")
    for key in ("row_bound", "gradient_bound"):
        if not getattr(config.exchange, key):
            raise UserError("0 leaves nothing to give away", where=f"exchange.{key}", fix="for example 0.01")
    with data_progress(Console(stderr=True)) as progress:
        dataset = open_dataset(config, progress)
    job = config.job(str(dataset.path))
    with console.status("compiling the codec, which takes a minute or two at the first use on a machine"):
        compile_exchange()
    with data_progress(Console(stderr=True)) as progress:
        found = profile(job, dataset, steps=steps, batches=batches, advance=progress)
    policies = policies_of(found, config)
    best = policies[POLICIES.index(policy)]
    found_config = chosen(best)
    out.write_text(yaml.safe_dump(found_config, sort_keys=False))
    rows = [table_row(one, found, best) for one in found.profiles]
    console.print(table_of_tables(rows))
    console.print(table_of_policies(policies))
    console.print(f"bounds of '{best.name}' are in {out}: thinwire train --config {out}", highlight=False)
    return {
        "tables": rows,
        "policies": [policy_row(policy) for policy in policies],
        "config": found_config,
        "out": str(out),
    }


def policies_of(found: Profiler, config: RunConfig) -> list[Policy]:
    """The configured bounds for all tables, and others that do no more harm than these: classes, and one a table. The
    paper's classes, which have their own harm, are between."""
    rows, gradients = found.curves(config.cluster.workers)
    row_bound, gradient_bound = config.exchange.row_bound, config.exchange.gradient_bound
    same = Policy(
        f"uniform, {row_bound:g} and {gradient_bound:g}", uniform(rows, row_bound), uniform(gradients, gradient_bound)
    )
    paper = paper_classes(found.profiles)
    bounds = {table: CLASSES[name] for table, name in paper.items()}
    of_paper = Policy(
        "arXiv 2407.04272: classes by homogenisation, rows only",
        total(rows, bounds),
        same.gradients,
    )
    three = {name: bound * row_bound / CLASSES["base"] for name, bound in CLASSES.items()}
    classes = Policy("three classes by harm, rows only", classify(rows, same.rows.harm, three)[1], same.gradients)
    each = Policy("a bound for each table, rows only", relative_to_uniform(rows, row_bound), same.gradients)
    both = Policy("the same, gradients too", each.rows, relative_to_uniform(gradients, gradient_bound))
    return [same, of_paper, classes, each, both]


def paper_classes(profiles: list[TableProfile]) -> dict[str, str]:
    """The third of the tables whose rows become equal the most has tight bounds, the next base, the last loose."""
    by_share = sorted(profiles, key=lambda one: -float(np.interp(_AT, one.bounds, one.equal)))
    third = math.ceil(len(by_share) / 3)
    names = list(CLASSES)
    return {one.table: names[min(i // third, 2)] for i, one in enumerate(by_share)}


def chosen(policy: Policy) -> Row:
    """A configuration with the bounds of a policy; one bound of gradients for all tables is said once."""
    rows, gradients = (
        {table: float(f"{bound:.4g}") for table, bound in share.bounds.items()}
        for share in (policy.rows, policy.gradients)
    )
    exchange: Row = {"codec": "thin", "dense": "thin"}
    same = len(set(gradients.values())) == 1
    if same:
        exchange["gradient_bound"] = next(iter(gradients.values()))
    own = {table: {"row_bound": rows[table]} | ({} if same else {"gradient_bound": gradients[table]}) for table in rows}
    return {"exchange": exchange | {"tables": own}}


def policy_row(policy: Policy) -> Row:
    return {
        "policy": policy.name,
        "row_bytes": policy.rows.bytes,
        "row_harm": policy.rows.harm,
        "gradient_bytes": policy.gradients.bytes,
        "gradient_harm": policy.gradients.harm,
    }


def table_row(one: TableProfile, found: Profiler, best: Policy) -> Row:
    """What a table is, at the bounds that were chosen."""
    n = found.batches
    row_bound, gradient_bound = best.rows.bounds[one.table], best.gradients.bounds[one.table]
    shadow = one.shadows[one.bounds.index(min(one.bounds, key=lambda b: abs(b - row_bound)))]
    mean, noise = shadow.seen()
    raw = 4 * one.dim * one.distinct / n
    sent = float(np.interp(math.log(row_bound), np.log(one.bounds), one.rows.bytes)) / n
    return {
        "table": one.table,
        "dim": one.dim,
        "range": one.value_range / n,
        "rms": math.sqrt(one.square / n),
        "distinct_share": one.distinct / max(one.lookups, 1),
        "equal_share": float(np.interp(row_bound, one.bounds, one.equal)) / n,
        "cost_of_error": one.cost_of_error,
        "loss_difference": mean,
        "loss_noise": noise,
        "ratio": raw / sent if sent else 0.0,
        "chains": found.try_chains(one, row_bound),
        "row_bound": row_bound,
        "gradient_bound": gradient_bound,
    }


def table_of_tables(rows: list[Row]) -> Table:
    result = Table(
        title="tables at the bounds that were found",
        caption="equal: distinct rows that become equal to another; cost: loss, as a share, per mean square of errors; "
        "loss: its difference with errors in this table alone, and the standard error of that",
        caption_justify="left",
    )
    for name in (
        "table",
        "range",
        "rms",
        "distinct",
        "equal",
        "cost",
        "loss, 1e-6",
        "ratio",
        "row bound",
        "gradient bound",
    ):
        result.add_column(name, justify="left" if name == "table" else "right")
    for row in rows:
        result.add_row(
            row["table"],
            f"{row['range']:.3g}",
            f"{row['rms']:.3g}",
            f"{row['distinct_share']:.1%}",
            f"{row['equal_share']:.1%}",
            f"{row['cost_of_error']:.3g}",
            f"{1e6 * row['loss_difference']:+.1f} ({1e6 * row['loss_noise']:.1f})",
            f"{row['ratio']:.1f}",
            f"{row['row_bound']:.2%}",
            f"{row['gradient_bound']:.2%}",
        )
    return result


def table_of_policies(policies: list[Policy]) -> Table:
    result = Table(
        title="policies",
        caption="KB that a rank gets a step, by the curves; harm of rows: share of the loss, in 1e-6; of gradients: "
        "next to that of the first policy",
        caption_justify="left",
    )
    for name in ("policy", "rows, KB", "harm", "gradients, KB", "harm"):
        result.add_column(name, justify="left" if name == "policy" else "right")
    first = policies[0].gradients.harm
    for policy in policies:
        result.add_row(
            policy.name,
            f"{policy.rows.bytes / 1e3:.2f}",
            f"{1e6 * policy.rows.harm:.2f}",
            f"{policy.gradients.bytes / 1e3:.2f}",
            f"{policy.gradients.harm / first:.2f}" if first else "",
        )
    return result
