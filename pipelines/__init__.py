"""Data in, model, training loop, checkpoints and metrics. Knows neither Ray nor MLflow, but for `prepare`."""
