"""`thinwire tune`, seen from the driver: Ray Tune and Optuna over error bounds, for speed and AUC at once."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ray
import yaml
from rich.console import Console

from app import tracking
from app.board import BoardView, start_board
from app.config import RunConfig, load_config
from app.data import open_dataset
from app.exchange_choice import compile_ahead
from app.progress import data_progress
from app.ready import check_job, ready_cluster
from app.storage import local_storage
from app.tracked_run import closed_at_the_end, open_tracked_run
from app.tune_confirm import Confirmed, confirm
from app.tune_result import best_of, pareto, read_trials, valid_trials, write_whole
from app.tune_space import Curves, changes, config_of, first_points, space_of, steps_of
from app.tune_trial import BASELINE, Search, run_trial, train_once
from app.tune_worker import Baseline
from app.workers import stop_signals
from compression.bounds import Curve
from pipelines.dataset import Dataset
from pipelines.errors import UserError
from pipelines.job import DivergedError, Job
from pipelines.options import link_bytes
from pipelines.profiler import profile

BEST, RESULT, SETTINGS, CURVES, BASE = "best.yaml", "result.json", "search.json", "curves.json", "baseline.json"
RAY_FOLDER = "ray"


@dataclass(frozen=True)
class TuneOptions:
    """How to search; kept in the folder of the search, so that it goes on in the same way."""

    trials: int = 16
    """Besides the baseline."""
    seeds: int = 1
    """Paired with the baseline, in each trial."""
    confirm: int = 8
    """Fresh seeds on which the best must still be within the limit; 0 = take the search's word."""
    max_auc_drop: float = 0.0002
    stop_drop: float = 0.005
    """A trial ends at once when its AUC is so far below the baseline's at the same step."""
    profile_steps: int = 200
    seed: int = 0
    """Of the search itself."""


def run_tune(config: RunConfig, options: TuneOptions, *, preset: str | None, console: Console) -> dict[str, Any]:
    """Search anew. Returns what `--json` writes; see `_finish`.

    Raises:
        UserError: something that the user gave is wrong, or no trial is valid.
        KeyboardInterrupt: Ctrl-C; what was finished is kept, and `resume_tune` goes on.
    """
    name = config.run.name or f"tune-{preset or 'run'}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = local_storage(config.run.storage) / name
    if folder.exists():
        raise UserError("a search of this name exists", where=str(folder), fix="go on with --resume, or rename")
    config.run.name, config.run.storage = name, str(folder.parent.resolve())
    if config.data.path is not None:
        config.data.path = str(Path(config.data.path).resolve())
    return _search(config, options, folder.resolve(), resume=False, console=console)


def resume_tune(folder: Path, *, console: Console) -> dict[str, Any]:
    """Go on with a search that was stopped: finished trials are not done again.

    Raises:
        UserError: the folder holds no search.
    """
    try:
        saved = json.loads((folder / SETTINGS).read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            "no search is here", where=str(folder), fix="name the folder that thinwire tune made"
        ) from error
    config = load_config(base=yaml.safe_load(saved["config"]))
    return _search(config, TuneOptions(**saved["options"]), folder.resolve(), resume=True, console=console)


def _search(config: RunConfig, options: TuneOptions, folder: Path, *, resume: bool, console: Console) -> dict[str, Any]:
    start = time.monotonic()
    with data_progress(console) as progress:
        dataset = open_dataset(config, progress)
    job = config.job(str(dataset.path))
    check_job(job, dataset, config.cluster.workers)
    try:
        device = ready_cluster(config, dataset, str(folder.parent), console)
        compile_ahead([job.exchange.model_copy(update={"codec": "thin"})], console)
        parent = open_tracked_run(config, folder.name, dataset, resume)
        folder.mkdir(parents=True, exist_ok=True)
        saved = {"config": config.to_yaml(), "options": asdict(options)}
        (folder / SETTINGS).write_text(json.dumps(saved, indent=1) + "\n")
        with closed_at_the_end(parent) as tags:
            console.print(f"search {folder}", highlight=False, soft_wrap=True)
            console.print(f"track  {tracking.dashboard_command(parent.uri)}", highlight=False, soft_wrap=True)
            search = Search(
                base=config,
                data=str(dataset.path),
                device=device,
                folder=str(folder),
                parent=parent,
                tags=tracking.environment_tags(world_size=config.cluster.workers, synthetic=dataset.manifest.synthetic),
                curves=_curves(job, dataset, config.cluster.workers, options.profile_steps, folder, console),
                steps=steps_of(job, dataset, config.cluster.workers),
                seeds=tuple(range(config.train.seed, config.train.seed + options.seeds)),
                link_bytes=link_bytes(config.exchange),
                stop_below=-options.stop_drop,
                board=start_board(),
            )
            with BoardView(search.board, console, "tune"):
                with stop_signals():
                    search = replace(search, baseline=_baseline(search, folder, console))
                with stop_signals():
                    _fit(search, options, folder)
                with stop_signals():
                    found = _finish(search, options, folder)
            best = found["best"]
            tags |= {"best_trial": best["trial"] if best else "none", "trials": str(len(found["rows"]))}
            tracking.log_summary(parent, _numbers(found), [folder / RESULT, *([folder / BEST] if best else [])])
    except KeyboardInterrupt:
        console.print(f"go on  thinwire tune --resume {folder}", highlight=False, soft_wrap=True)
        raise
    finally:
        ray.shutdown()
    return found | {"seconds": time.monotonic() - start, "dashboard": tracking.dashboard_command(parent.uri)}


def _curves(job: Job, dataset: Dataset, ranks: int, steps: int, folder: Path, console: Console) -> Curves:
    """What `thinwire analyze` measures, once for all trials."""
    file = folder / CURVES
    if not file.exists():
        with data_progress(console) as progress:
            both = profile(job, dataset, steps=steps, batches=4, advance=progress).curves(ranks)
        write_whole(file, [{table: asdict(curve) for table, curve in of.items()} for of in both])
    rows, gradients = (
        {t: Curve(**{k: tuple(v) for k, v in c.items()}) for t, c in of.items()} for of in json.loads(file.read_text())
    )
    return rows, gradients


def _baseline_config(search: Search) -> RunConfig:
    """Of trial 0: TorchRec's exchange in fp32."""
    values = search.base.model_dump()
    values["exchange"] |= {"codec": "none", "dense": "none", "tables": {}}
    return RunConfig.model_validate(values)


def _baseline(search: Search, folder: Path, console: Console) -> Baseline:
    file = folder / BASE
    if not file.exists():
        outcome = train_once(BASELINE, _baseline_config(search), search, [])
        if outcome["diverged"]:
            raise DivergedError(f"the baseline {outcome['why']}")
        base = Baseline.of(outcome)
        write_whole(file, asdict(base))
        kb = base.wire_kb
        console.print(f"{BASELINE}: {base.step_ms:.1f} ms and {kb:,.1f} KB a step", highlight=False, soft_wrap=True)
    return Baseline(**json.loads(file.read_text()))


def _fit(search: Search, options: TuneOptions, folder: Path) -> None:
    """Let Ray Tune run the trials that are left, one at a time: two at once would slow each other."""
    from ray import tune
    from ray.tune.search import ConcurrencyLimiter
    from ray.tune.search.optuna import OptunaSearch

    # Its loggers copy what MLflow and result.json have.
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = "1"
    # Its handler of Ctrl-C would make a search that was stopped look like one that ended.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    # A trial waits for its workers, which take all CPUs. It runs here, where its folder is.
    here = f"node:{ray.util.get_node_ip_address()}"
    trainable = tune.with_resources(
        tune.with_parameters(run_trial, search=search), tune.PlacementGroupFactory([{here: 0.001}])
    )
    ray_folder = folder / RAY_FOLDER
    if tune.Tuner.can_restore(str(ray_folder)) and any(ray_folder.glob("experiment_state-*.json")):
        tuner = tune.Tuner.restore(str(ray_folder), trainable, resume_unfinished=True)
    else:
        space = space_of(search.base, search.device)
        algorithm = OptunaSearch(
            space.distributions(),
            metric=["speedup", "auc_delta"],
            mode=["max", "max"],
            points_to_evaluate=first_points(search.base, space),
            seed=options.seed,
        )
        tuner = tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(
                num_samples=options.trials,
                search_alg=ConcurrencyLimiter(algorithm, max_concurrent=1),
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(name=RAY_FOLDER, storage_path=str(folder), verbose=0),
        )
    tuner.fit()


def _finish(search: Search, options: TuneOptions, folder: Path) -> dict[str, Any]:
    """Confirm the best trial, and write `result.json` and `best.yaml`.

    Returns:
        `rows` (a record a trial), `pareto` (names), `best` (a record or None), `confirmed` (what was tried on fresh
        seeds), `folder`, `config` (path of best.yaml).

    Raises:
        UserError: no trial is valid.
    """
    valid = valid_trials(folder)
    tried: list[Confirmed] = []
    best = best_of(valid, options.max_auc_drop)
    if options.confirm and best:
        first = search.seeds[-1] + 1
        seeds = range(first, first + options.confirm)
        tried = confirm(search, valid, seeds, options.max_auc_drop, _baseline_config(search))
        best = tried[-1].trial if tried[-1].within(options.max_auc_drop) else None
    if best and best.point:
        of = config_of(best.point, search.base, search.curves, search.steps)
        delta = f"{tried[-1].auc_delta['mean']:+.5f} on fresh seeds" if tried else f"{best.auc_delta:+.5f}"
        note = f"# Of {best.name}: speedup {best.speedup:.2f}x by the cost law, AUC {delta}\n"
        (folder / BEST).write_text(note + yaml.safe_dump(changes(of), sort_keys=False))
    found = {
        "rows": [trial.record() for trial in read_trials(folder)],
        "pareto": [trial.name for trial in pareto(valid)],
        "best": best.record() if best else None,
        "confirmed": [one.record() for one in tried],
        "max_auc_drop": options.max_auc_drop,
        "folder": str(folder),
        "config": str(folder / BEST) if best else None,
    }
    write_whole(folder / RESULT, found)
    return found


def _numbers(found: dict[str, Any]) -> dict[str, float]:
    """Of the search's own MLflow run: those of its best trial."""
    best = found["best"] or {}
    keys = ("speedup", "auc_delta", "wire_bytes_per_step", "ratio")
    return {key: float(best[key]) for key in keys if key in best}
