"""The two sides of a comparison."""

ARMS = ("baseline", "candidate")
RESULT, REPORT, PAIRS = "compare.json", "report.html", "pairs.json"
"""Files of a comparison, in its folder."""


def run_name(seed: int, arm: str) -> str:
    """Of the MLflow run and the folder of one arm with one seed."""
    return f"seed-{seed}-{arm}"
