"""The metric that selects best.pt, if it is not Ultralytics' own fitness (mAP50-95)."""

MAP50, F1, F2 = "mAP50", "F1", "F2"
BETA = {F1: 1.0, F2: 2.0}
METRICS = (MAP50, F1, F2)
FINGERPRINT_KEY = "validation best_by"
"""The key in the fingerprint of a snapshot."""


def score(metrics, metric):
    """Return one number from the metrics of a validation, higher is better; None if they lack a required metric.

    A model that finds boxes and masks (or keypoints) has each metric twice, `(B)` and `(M)`: use their mean.
    """
    scores = [
        value for value in (_score(metrics, metric, suffix) for suffix in _suffixes(metrics)) if value is not None
    ]
    return sum(scores) / len(scores) if scores else None


def reset_best(trainer):
    """Reset the best value: values of different metrics cannot be compared."""
    trainer.best_fitness = None
    trainer.stopper.best_fitness = 0.0


def f_beta(precision, recall, beta):
    """Return the F-beta score, in which recall counts beta times as much as precision."""
    both = beta * beta * precision + recall
    return (1.0 + beta * beta) * precision * recall / both if both > 0 else 0.0


def _suffixes(metrics):
    return sorted({name.rpartition("(")[2] for name in metrics if name.startswith("metrics/") and name.endswith(")")})


def _score(metrics, metric, suffix):
    if metric == MAP50:
        return metrics.get("metrics/mAP50(" + suffix)
    precision, recall = metrics.get("metrics/precision(" + suffix), metrics.get("metrics/recall(" + suffix)
    if metric not in BETA or precision is None or recall is None:
        return None
    return f_beta(precision, recall, BETA[metric])
