"""The planner's choice for a run: which rows every worker holds, and how each table travels."""

from __future__ import annotations

from app.config import RunConfig
from app.plan_command import fragment, problem_of, reason
from cache.constants import Constants
from cache.plan import make_plan
from pipelines.dataset import Dataset
from pipelines.workload import read_workload


def planned(config: RunConfig, dataset: Dataset, constants: Constants) -> tuple[RunConfig, str]:
    """A configuration of the thin exchange with what the planner chooses for its data, workers and link.

    Returns:
        The configuration, and what was chosen and why, in a line.
    """
    workload = read_workload(config.job(str(dataset.path)), dataset)
    problem = problem_of(config, workload, constants, config.cluster.workers, config.exchange.link_mbit, None)
    plan = make_plan(problem)
    chosen = fragment(problem, plan)
    values = config.model_dump()
    for section, of in chosen.items():
        values[section] |= of
    hot = chosen["cache"]["hot_rows"]
    paths = [pick.path for pick in plan.picks]
    rows = f"{sum(hot.values()):,} hot rows of {len(hot)} tables" if hot else "no hot rows"
    text = f"{rows}, {paths.count('row')} tables by row and {paths.count('pooled')} pooled ({reason(plan)})"
    return RunConfig.model_validate(values), text
