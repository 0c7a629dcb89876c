import torch

from app import worker
from app.worker import WorkerSettings, work
from pipelines.job import Job


def test_the_device_is_set_before_the_first_collective(monkeypatch) -> None:
    """A communicator made on the wrong device hangs (ray-project/ray#42751). Needs two GPUs to see it happen, so the
    order of calls is checked with stand-ins."""
    calls: list[str] = []

    class Hooks:
        def __init__(self, settings: WorkerSettings) -> None:
            calls.append("hooks")

        def close(self) -> None:
            calls.append("close")

        def finish(self, metrics: dict) -> None:
            calls.append("finish")

    monkeypatch.setattr(worker.ray.train.torch, "get_device", lambda: torch.device("cuda", 1))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(f"set {device}"))
    monkeypatch.setattr(worker, "RayHooks", Hooks)
    monkeypatch.setattr(worker, "train", lambda *_: calls.append("train") or {})
    threads = torch.get_num_threads()
    try:
        work(WorkerSettings(Job("x"), None, None, "x", system_metrics=False, threads=1))
    finally:
        torch.set_num_threads(threads)
    assert calls == ["set cuda:1", "hooks", "train", "close", "finish"]
