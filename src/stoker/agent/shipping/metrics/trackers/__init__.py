"""Metrics in what experiment trackers write on a node: MLflow's stores, W&B's offline runs. No tracker is imported."""
