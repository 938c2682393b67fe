"""All losses under one signature, make(num_classes, embedding_size, **options)."""

from functools import partial

from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import losses as pml_losses
from torch.nn import functional as F

from pml_nivmf.distances import (
    BhattacharyyaDistance,
    ExpectedLikelihoodNivMFDistance,
    KLDistance,
    NivMFDistance,
    PPKDistance,
)
from pml_nivmf.losses import JointProxyLoss, NivMFProxyLoss, NonIsotropicVMFLoss, VMFProxyLoss


def sampled(n_samples=3, **options):
    return ExpectedLikelihoodNivMFDistance(n_samples=n_samples, estimator="monte_carlo", **options)


def fixed_noise_sampler(noise):
    """A stand-in for sampling whose draws depend on the image alone, so that two programs see the same samples."""

    def sample(natural, sample_shape=(), antithetic=False, generator=None):
        draws = noise[: sample_shape[0]].to(natural.dtype)
        return F.normalize(natural + draws.view(len(draws), *[1] * (natural.ndim - 1), -1), dim=-1)

    return sample


def joint(num_classes, embedding_size, guidance, distance=None, **options):
    probabilistic = NonIsotropicVMFLoss(num_classes, embedding_size, distance=distance)
    return JointProxyLoss(probabilistic, guidance(num_classes, embedding_size), weight=3.0, **options)


PAPER = ExpectedLikelihoodNivMFDistance(normalizer="paper")
SECOND_ORDER = ExpectedLikelihoodNivMFDistance(estimator="second_order")
OUTSIDE = {"temperature": 0.5, "temperature_position": "outside"}
NORM_CARRYING = {
    "EL-nivMF": partial(NonIsotropicVMFLoss, distance=sampled(5)),
    "EL-nivMF analytic": partial(NonIsotropicVMFLoss, distance=PAPER),
    "EL-nivMF analytic exact": partial(NonIsotropicVMFLoss, concentration="shared"),
    "EL-nivMF second order": partial(NonIsotropicVMFLoss, distance=SECOND_ORDER, parametrization="softplus"),
    "EL-nivMF outside": partial(NonIsotropicVMFLoss, distance=sampled(), **OUTSIDE),
    "EL-nivMF deviations": partial(NonIsotropicVMFLoss, concentration="shared_plus_deviation"),
    "EL-vMF": VMFProxyLoss,
    "EL-vMF deviations": partial(VMFProxyLoss, concentration="shared_plus_deviation"),
    "B-vMF": partial(VMFProxyLoss, distance=BhattacharyyaDistance()),
    "PPK": partial(VMFProxyLoss, distance=PPKDistance(0.3)),
    "KL-vMF": partial(VMFProxyLoss, distance=KLDistance()),
    "KL-vMF paper": partial(VMFProxyLoss, distance=KLDistance("paper")),
    "L2": partial(VMFProxyLoss, distance=pml_distances.LpDistance(normalize_embeddings=False, power=2)),
    "dot": partial(VMFProxyLoss, distance=pml_distances.DotProductSimilarity(normalize_embeddings=False)),
}
DIRECTIONAL = {
    "nivMF": partial(NivMFProxyLoss, distance=NivMFDistance("paper")),
    "nivMF exact": partial(NivMFProxyLoss, concentration="shared"),
    "Cos": partial(VMFProxyLoss, distance=pml_distances.CosineSimilarity()),
    "Lp": partial(VMFProxyLoss, distance=pml_distances.LpDistance()),
}
SINGLE = NORM_CARRYING | DIRECTIONAL
JOINT = {
    "PANC + EL-nivMF": partial(joint, guidance=pml_losses.ProxyAnchorLoss, distance=sampled()),
    "PNCA + EL-nivMF": partial(joint, guidance=pml_losses.ProxyNCALoss),
}
ALL = SINGLE | JOINT
# Each class, with distances of this package and of PML: for conformance with PML and for properties.
_NAMES = ("EL-nivMF", "EL-nivMF analytic exact", "nivMF", "EL-vMF", "KL-vMF", "L2", "Cos")
FEW_SINGLE = {name: SINGLE[name] for name in _NAMES}
FEW = FEW_SINGLE | {"PANC + EL-nivMF": ALL["PANC + EL-nivMF"]}
ONE_OF_EACH_CLASS = {name: ALL[name] for name in ("EL-nivMF", "nivMF", "EL-vMF", "PANC + EL-nivMF")}
