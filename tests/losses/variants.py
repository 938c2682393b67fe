"""The losses that every test of common behaviour goes through."""

from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import losses as pml_losses

from pml_nivmf.distances import BhattacharyyaDistance, KLDistance, PPKDistance
from pml_nivmf.losses import JointProxyLoss, NivMFProxyLoss, NonIsotropicVMFLoss, VMFProxyLoss


def _vmf(**distance):
    return lambda c, m, **kwargs: VMFProxyLoss(c, m, **distance, **kwargs)


def _joint(guidance, **options):
    def make(c, m, **kwargs):
        return JointProxyLoss(NonIsotropicVMFLoss(c, m, **options, **kwargs), guidance(c, m), weight=3.0)

    return make


NORM_CARRYING = {
    "EL-nivMF": NonIsotropicVMFLoss,
    "EL-nivMF exact": lambda c, m, **k: NonIsotropicVMFLoss(c, m, normalizer="exact", n_samples=3, **k),
    "EL-nivMF analytic": lambda c, m, **k: NonIsotropicVMFLoss(c, m, estimator="analytic", **k),
    "EL-nivMF analytic exact": lambda c, m, **k: NonIsotropicVMFLoss(
        c, m, estimator="analytic", normalizer="exact", concentration="shared", **k
    ),
    "EL-nivMF outside": lambda c, m, **k: NonIsotropicVMFLoss(
        c, m, temperature=0.5, temperature_position="outside", **k
    ),
    "EL-nivMF deviations": lambda c, m, **k: NonIsotropicVMFLoss(
        c, m, estimator="analytic", concentration="shared_plus_deviation", **k
    ),
    "EL-vMF": _vmf(),
    "EL-vMF deviations": _vmf(concentration="shared_plus_deviation"),
    "B-vMF": _vmf(distance=BhattacharyyaDistance()),
    "PPK": _vmf(distance=PPKDistance(0.3)),
    "KL-vMF": _vmf(distance=KLDistance()),
    "KL-vMF paper": _vmf(distance=KLDistance("paper")),
    "L2": _vmf(distance=pml_distances.LpDistance(normalize_embeddings=False, power=2)),
    "dot": _vmf(distance=pml_distances.DotProductSimilarity(normalize_embeddings=False)),
}
DIRECTIONAL = {
    "nivMF": NivMFProxyLoss,
    "nivMF exact": lambda c, m, **k: NivMFProxyLoss(c, m, normalizer="exact", concentration="shared", **k),
    "Cos": _vmf(distance=pml_distances.CosineSimilarity()),
    "Lp": _vmf(distance=pml_distances.LpDistance()),
}
SINGLE = NORM_CARRYING | DIRECTIONAL
JOINT = {
    "PANC + EL-nivMF": _joint(pml_losses.ProxyAnchorLoss),
    "PNCA + EL-nivMF": _joint(pml_losses.ProxyNCALoss, estimator="analytic"),
}
ALL = SINGLE | JOINT
