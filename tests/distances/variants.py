"""All distances with their options: tests of common behaviour go through them."""

from functools import partial

import pytest

from pml_nivmf.distances import (
    BhattacharyyaDistance,
    ExpectedLikelihoodDistance,
    ExpectedLikelihoodNivMFDistance,
    KLDistance,
    NivMFDistance,
    PPKDistance,
)


def each(variants):
    """Run a test with `make` for every variant."""
    return pytest.mark.parametrize("make", variants.values(), ids=variants.keys())


def el_nivmf(estimator, normalizer, n_samples=3, **options):
    return ExpectedLikelihoodNivMFDistance(n_samples=n_samples, normalizer=normalizer, estimator=estimator, **options)


VMF = {
    "PPK": partial(PPKDistance, 0.7),
    "EL-vMF": ExpectedLikelihoodDistance,
    "B-vMF": BhattacharyyaDistance,
    "KL-vMF": partial(KLDistance, "exact"),
    "KL-vMF paper": partial(KLDistance, "paper"),
}
NIVMF = {
    "nivMF": partial(NivMFDistance, "exact"),
    "nivMF paper": partial(NivMFDistance, "paper"),
    "EL-nivMF": partial(el_nivmf, "analytic", "exact"),
    "EL-nivMF second order": partial(el_nivmf, "second_order", "exact"),
    "EL-nivMF paper": partial(el_nivmf, "analytic", "paper"),
    "EL-nivMF sampled": partial(el_nivmf, "monte_carlo", "exact"),
    "EL-nivMF sampled paper": partial(el_nivmf, "monte_carlo", "paper"),
}
ALL = VMF | NIVMF
DETERMINISTIC = {name: make for name, make in ALL.items() if "sampled" not in name}
