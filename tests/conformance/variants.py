"""The losses that conformance and property tests go through: each class of ours, with distances of ours and of PML."""

from functools import partial

from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.losses import ProxyAnchorLoss

from pml_nivmf.distances import ExpectedLikelihoodNivMFDistance, KLDistance
from pml_nivmf.losses import JointProxyLoss, NivMFProxyLoss, NonIsotropicVMFLoss, VMFProxyLoss


def el_nivmf(num_classes, embedding_size, estimator="analytic", **options):
    """The one place where a loss of these tests needs options of its distance."""
    distance = ExpectedLikelihoodNivMFDistance(n_samples=3, normalizer="exact", estimator=estimator)
    return NonIsotropicVMFLoss(num_classes, embedding_size, distance=distance, **options)


def joint(num_classes, embedding_size, **options):
    probabilistic = el_nivmf(num_classes, embedding_size)
    return JointProxyLoss(probabilistic, ProxyAnchorLoss(num_classes, embedding_size), weight=3.0, **options)


SINGLE = {
    "EL-nivMF": el_nivmf,
    "EL-nivMF sampled": partial(el_nivmf, estimator="monte_carlo"),
    "nivMF": NivMFProxyLoss,
    "EL-vMF": VMFProxyLoss,
    "KL-vMF": partial(VMFProxyLoss, distance=KLDistance("exact")),
    "L2": partial(VMFProxyLoss, distance=LpDistance(normalize_embeddings=False, power=2)),
    "Cos": partial(VMFProxyLoss, distance=CosineSimilarity()),
}
ALL = SINGLE | {"PANC + EL-nivMF": joint}
ONE_OF_EACH_CLASS = {name: ALL[name] for name in ("EL-nivMF sampled", "nivMF", "EL-vMF", "PANC + EL-nivMF")}
