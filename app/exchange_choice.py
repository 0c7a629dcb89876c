"""Whether a run exchanges embeddings by the thin exchange, decided once, before it starts: a resumed run must go on in
the same way, wherever it then runs."""

from __future__ import annotations

from collections.abc import Iterable

import ray
from rich.console import Console

from app.config import ClusterOptions, RunConfig
from pipelines.dataset import Dataset
from pipelines.options import ExchangeOptions
from pipelines.thin import compile_exchange, resolve


def decide_exchange(config: RunConfig, dataset: Dataset, device: str, console: Console) -> None:
    """Put `thin` or `none` in the place of `exchange.codec=auto`. Ray is connected."""
    if config.exchange.codec != "auto":
        return
    hosts = hosts_of(config.cluster, device, [node["Resources"] for node in ray.nodes() if node["Alive"]])
    config.exchange = resolve(config.job(str(dataset.path)), dataset, config.cluster.workers, hosts)
    where = "one host" if hosts == 1 else f"{hosts} hosts"
    console.print(f"exchange {config.exchange.codec} (auto, workers on {where})", highlight=False)


def compile_ahead(exchanges: Iterable[ExchangeOptions], console: Console) -> None:
    """Compile the thin exchange here, if one of these is it: on this machine the workers then find it done."""
    if any("thin" in (exchange.codec, exchange.dense) for exchange in exchanges):
        with console.status("compiling the thin exchange, which takes a minute or two at the first use on a machine"):
            compile_exchange()


def hosts_of(cluster: ClusterOptions, device: str, nodes: list[dict[str, float]]) -> int:
    """Nodes on which Ray will place the workers, about: PACK fills one after the other.

    >>> hosts_of(ClusterOptions(workers=4), "cpu", [{"CPU": 2.0}, {"CPU": 2.0}, {"CPU": 2.0}])
    2
    """
    if cluster.placement == "STRICT_PACK":
        return 1
    if "SPREAD" in cluster.placement:
        return max(min(len(nodes), cluster.workers), 1)
    each = 1 if device == "cuda" else cluster.cpus_per_worker
    room = sorted((int(node.get("GPU" if device == "cuda" else "CPU", 0)) // each for node in nodes), reverse=True)
    placed, hosts = 0, 0
    while placed < cluster.workers and hosts < len(room):
        placed += room[hosts]
        hosts += 1
    return max(hosts, 1)
