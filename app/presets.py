"""Ready configurations. A preset states what differs from the defaults in `pipelines.options` and `app.config`."""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # Seconds: does everything work?
    "smoke": {
        "data": {"synthetic": {"rows": 24_000}},
        "model": {"embedding_dim": 8, "dense_layers": [16], "over_layers": [16]},
        "train": {"batch_size": 512, "log_every": 5},
        "tracking": {"system_metrics": False},
    },
    # A few minutes on two cores: a distributed run that learns what was planted in its data.
    "demo": {
        "data": {"synthetic": {"rows": 1_000_000}},
        "train": {"batch_size": 1024, "log_every": 10},
        "optim": {"warmup_steps": 20},
        # The exchange is made for such a link. On one machine there is a faster one, its memory.
        "exchange": {"link_mbit": 1000},
    },
    # Criteo Kaggle (45.8 M rows) as in the DLRM paper, arXiv 1906.00091. Give data.path.
    "kaggle": {
        "model": {"embedding_dim": 16, "dense_layers": [512, 256, 64], "over_layers": [512, 256]},
        "train": {"batch_size": 2048, "log_every": 100, "eval_every": 2000, "checkpoint_every": 2000},
        "optim": {"warmup_steps": 200},
    },
    # Criteo 1TB multi-hot: the model and optimiser of MLPerf Training's DLRM-DCNv2 on 8 GPUs. Give data.path.
    "terabyte": {
        "data": {"shuffle": False, "prefetch": 8},
        "model": {
            "arch": "dcn",
            "embedding_dim": 128,
            "dense_layers": [512, 256],
            "over_layers": [1024, 1024, 512, 256],
            "dcn_layers": 3,
            "dcn_rank": 512,
        },
        "optim": {"sparse_lr": 0.005, "dense": "adagrad", "dense_lr": 0.005},
        "train": {"batch_size": 8192, "log_every": 100, "eval_every": 3200, "checkpoint_every": 3200},
        "cluster": {"workers": 8, "device": "cuda", "cpus_per_worker": 8},
        "run": {"export": False},
    },
}
