"""Error bounds by table and by iteration (arXiv 2407.04272, section 4.2), and found from measurements."""

from compression.bounds.allocate import CLASSES, Curve, Share, allocate, classify, relative_to_uniform, total, uniform
from compression.bounds.closed_loop import ClosedLoop, Shadow
from compression.bounds.schedule import SHAPES, Schedule, Shape

__all__ = [
    "CLASSES",
    "SHAPES",
    "ClosedLoop",
    "Curve",
    "Schedule",
    "Shadow",
    "Shape",
    "Share",
    "allocate",
    "classify",
    "relative_to_uniform",
    "total",
    "uniform",
]
