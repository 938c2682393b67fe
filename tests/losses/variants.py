"""All losses under one signature, make(num_classes, embedding_size, **options)."""

from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import losses as pml_losses

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


def _with(kind, **fixed):
    return lambda c, m, **options: kind(c, m, **fixed, **options)


def _joint(guidance, **fixed):
    def make(c, m, **options):
        return JointProxyLoss(NonIsotropicVMFLoss(c, m, **fixed, **options), guidance(c, m), weight=3.0)

    return make


PAPER = ExpectedLikelihoodNivMFDistance(normalizer="paper")
SECOND_ORDER = ExpectedLikelihoodNivMFDistance(estimator="second_order")
NORM_CARRYING = {
    "EL-nivMF": _with(NonIsotropicVMFLoss, distance=sampled(5)),
    "EL-nivMF analytic": _with(NonIsotropicVMFLoss, distance=PAPER),
    "EL-nivMF analytic exact": _with(NonIsotropicVMFLoss, concentration="shared"),
    "EL-nivMF second order": _with(NonIsotropicVMFLoss, distance=SECOND_ORDER, parametrization="softplus"),
    "EL-nivMF outside": _with(NonIsotropicVMFLoss, distance=sampled(), temperature=0.5, temperature_position="outside"),
    "EL-nivMF deviations": _with(NonIsotropicVMFLoss, concentration="shared_plus_deviation"),
    "EL-vMF": VMFProxyLoss,
    "EL-vMF deviations": _with(VMFProxyLoss, concentration="shared_plus_deviation"),
    "B-vMF": _with(VMFProxyLoss, distance=BhattacharyyaDistance()),
    "PPK": _with(VMFProxyLoss, distance=PPKDistance(0.3)),
    "KL-vMF": _with(VMFProxyLoss, distance=KLDistance()),
    "KL-vMF paper": _with(VMFProxyLoss, distance=KLDistance("paper")),
    "L2": _with(VMFProxyLoss, distance=pml_distances.LpDistance(normalize_embeddings=False, power=2)),
    "dot": _with(VMFProxyLoss, distance=pml_distances.DotProductSimilarity(normalize_embeddings=False)),
}
DIRECTIONAL = {
    "nivMF": _with(NivMFProxyLoss, distance=NivMFDistance("paper")),
    "nivMF exact": _with(NivMFProxyLoss, concentration="shared"),
    "Cos": _with(VMFProxyLoss, distance=pml_distances.CosineSimilarity()),
    "Lp": _with(VMFProxyLoss, distance=pml_distances.LpDistance()),
}
SINGLE = NORM_CARRYING | DIRECTIONAL
JOINT = {
    "PANC + EL-nivMF": _joint(pml_losses.ProxyAnchorLoss, distance=sampled()),
    "PNCA + EL-nivMF": _joint(pml_losses.ProxyNCALoss),
}
ALL = SINGLE | JOINT
