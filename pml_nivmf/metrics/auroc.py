"""Does certainty tell right from wrong?"""

from typing import Any

from .checks import UndefinedMetricError, as_outcomes, as_scores
from .ranks import mid_ranks


def certainty_auroc(certainty: Any, correct: Any) -> float:
    r"""P(c_right > c_wrong) + ½·P(c_right = c_wrong) for a right and a wrong item drawn at random: the area under the
    ROC curve of `certainty` as a predictor of `correct`. ½ is chance, 1 perfect, below ½ worse than none.

    With `correct` = "the nearest neighbour is of the query's class" it is the recall-AUROC of the uncertainty
    literature [Kirchhof et al. 2023, URL].

    certainty: one number an item, higher is surer, (items,).
    correct: whether the item was right, booleans or 0 and 1, (items,).

    From the sum of mid-ranks of the right ones: (Σ rank − n₁(n₁+1)/2) / (n₁·n₀) [Mann & Whitney 1947].
    Raises UndefinedMetricError, a ValueError, where all items are right or all are wrong.
    """
    scores = as_scores("certainty", certainty)
    right = as_outcomes("correct", correct, len(scores)).bool()
    positives = int(right.sum())
    negatives = len(right) - positives
    if positives == 0 or negatives == 0:
        raise UndefinedMetricError(f"an AUROC needs right and wrong items, got {positives} right and {negatives} wrong")
    ranks = float(mid_ranks(scores)[right].sum())
    return (ranks - positives * (positives + 1) / 2) / (positives * negatives)
