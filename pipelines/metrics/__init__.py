"""What a run is judged by: the quality of its scores, and the bytes that it sends."""

from pipelines.metrics.quality import auc, gather_scores, log_loss, normalized_entropy
from pipelines.metrics.wire import EXCHANGE, KINDS, WireBytes, wire_metrics

__all__ = ["EXCHANGE", "KINDS", "WireBytes", "auc", "gather_scores", "log_loss", "normalized_entropy", "wire_metrics"]
