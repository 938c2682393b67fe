"""Is a model less certain of an image that was made worse?

How certainty follows the strength of a degradation is `spearman_correlation(strength, certainty)`: −1 where every
stronger degradation makes the model less certain.
"""

from typing import Any

from .checks import as_scores


def share_less_certain(certainty_clean: Any, certainty_degraded: Any) -> float:
    """The share of images whose certainty drops when degraded, in [0, 1]; an unchanged certainty is no drop.

    Both are (images,), in the same order; ½ is what a certainty that ignores the degradation gets by chance.
    """
    clean = as_scores("certainty_clean", certainty_clean)
    degraded = as_scores("certainty_degraded", certainty_degraded)
    if len(clean) != len(degraded):
        raise ValueError(
            f"certainty_clean and certainty_degraded must be of the same images, got {len(clean)} and {len(degraded)}"
        )
    return float((degraded < clean).double().mean())
