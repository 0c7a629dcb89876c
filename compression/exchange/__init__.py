"""The thin exchange: TorchRec's embedding exchange with duplicates removed, ids packed, rows and gradients compressed.

docs/exchange.md is the guide. It needs torch and TorchRec besides what `compression` needs.
"""

from compression.exchange.choose import choose_path, path_bytes
from compression.exchange.config import Direction, ExchangeConfig, TablePolicy
from compression.exchange.dense import DenseExchange, dense_hook
from compression.exchange.errors import BoundError, ExchangeError
from compression.exchange.sharders import exchange_report, scale_bounds, set_link, thin_sharders, use_chain
from compression.exchange.warm_up import warm_up

__all__ = [
    "BoundError",
    "DenseExchange",
    "Direction",
    "ExchangeConfig",
    "ExchangeError",
    "TablePolicy",
    "choose_path",
    "dense_hook",
    "exchange_report",
    "path_bytes",
    "scale_bounds",
    "set_link",
    "thin_sharders",
    "use_chain",
    "warm_up",
]
