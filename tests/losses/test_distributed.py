"""Two gloo ranks find the gradients of one process with the joined batch; also with classes spread over the ranks."""

import pytest
import torch
from pytorch_metric_learning import losses as pml

from pml_nivmf.losses import JointProxyLoss, NonIsotropicVMFLoss, VMFProxyLoss, load_whole_state_dict, whole_state_dict
from pml_nivmf.losses.sharding import Shard

from . import two_ranks
from .two_ranks import CLASSES, COUPLED, OURS, RANKS, SIZE


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each rank found, by case."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(two_ranks.work, args=(folder,), nprocs=RANKS)
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(RANKS)]


def assert_same(found, expected):
    assert set(expected) <= set(found)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-10, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("name", OURS)
def test_losses_under_ddp(ranks, name):
    for found in ranks:
        assert_same(found[name], two_ranks.alone(OURS[name]))


@pytest.mark.parametrize("name", COUPLED)
def test_losses_that_couple_the_batch(ranks, name):
    for found in ranks:
        assert_same(found[f"{name}, coupled"], two_ranks.alone(COUPLED[name]))


def test_guidance_sees_the_images_of_all_ranks(ranks):
    for found in ranks:
        assert_same(found["joint"], two_ranks.alone(lambda: two_ranks.joint(gather_guidance=False)))


def test_a_miner_sees_the_images_of_all_ranks(ranks):
    expected = two_ranks.alone(COUPLED["triplets"], two_ranks.hard_triplets())
    unmined = two_ranks.alone(COUPLED["triplets"])
    assert not torch.allclose(expected["model.weight"], unmined["model.weight"]), "the miner must matter"
    for found in ranks:
        assert_same(found["mined"], expected)


@pytest.mark.parametrize("name", OURS)
def test_classes_spread_over_ranks(ranks, name):
    expected = two_ranks.alone(OURS[name])
    for found in ranks:
        assert_same(found[f"{name}, sharded"], expected)


def test_logits_of_all_classes(ranks):
    model, loss = two_ranks.model_and_loss(OURS["kl_vmf"])
    features, labels = two_ranks.batch(0)
    loss(model(features), labels)  # calibrates
    expected = loss.get_logits(model(features))
    torch.testing.assert_close(torch.cat([found["kl_vmf, sharded"]["logits"] for found in ranks]), expected)


def _step(model, loss, optimizer, step):
    features, labels = two_ranks.batch(step)
    optimizer.zero_grad()
    loss(model(features), labels).backward()
    optimizer.step()


@pytest.mark.filterwarnings("ignore:warm start")
def test_two_steps_and_a_state_that_fits_any_number_of_ranks(ranks):
    model, loss = two_ranks.training()
    loss.warm_start(model(two_ranks.batch(5)[0]), two_ranks.batch(5)[1])
    optimizer = two_ranks.optimizer_of(model, loss)
    _step(model, loss, optimizer, 1)
    _step(model, loss, optimizer, 2)
    for found in ranks:
        assert_same(found["training"]["second"]["loss"], loss.state_dict())
        assert_same(found["training"]["second"]["model"], model.state_dict())

    first = ranks[1]["training"]["first"]
    again, resumed = two_ranks.training()
    fresh = two_ranks.optimizer_of(again, resumed)
    again.load_state_dict(first["model"])
    resumed.load_state_dict(first["loss"])  # the state of a loss without shards
    fresh.load_state_dict(first["optimizer"])
    _step(again, resumed, fresh, 2)
    assert_same(resumed.state_dict(), loss.state_dict())


def test_equal_seeds_do_not_make_equal_shards(ranks):
    rows = [found["initial rows"]["proxies"] for found in ranks]
    assert [len(part) for part in rows] == [4, 3]
    assert not torch.equal(rows[0][:3], rows[1])


def test_each_rank_takes_its_rows_of_the_whole_state():
    whole = VMFProxyLoss(CLASSES, SIZE)
    loss = VMFProxyLoss(CLASSES, SIZE, sharded=True)
    loss.shard = Shard(CLASSES, rank=1, world=3)
    assert loss.shard.lengths == [3, 2, 2]
    loss.proxies = torch.nn.Parameter(torch.empty(2, SIZE))
    loss.log_concentration = torch.nn.Parameter(torch.empty(2, 1))
    load_whole_state_dict(loss, {"loss": whole.state_dict()})
    assert torch.equal(loss.proxies, whole.proxies[3:5])


def test_without_ranks_a_sharded_loss_is_the_loss():
    torch.manual_seed(0)
    whole = NonIsotropicVMFLoss(CLASSES, SIZE, estimator="analytic")
    torch.manual_seed(0)
    loss = NonIsotropicVMFLoss(CLASSES, SIZE, estimator="analytic", sharded=True)
    embeddings, labels = torch.randn(4, SIZE), torch.arange(4)
    torch.testing.assert_close(loss(embeddings, labels), whole(embeddings, labels))
    torch.testing.assert_close(loss.get_logits(embeddings), whole.get_logits(embeddings))
    assert set(whole_state_dict(loss)["loss"]) == set(whole.state_dict())


def test_what_shards_do_not_go_with():
    with pytest.raises(ValueError, match="leave negative_samples out"):
        NonIsotropicVMFLoss(CLASSES, SIZE, negative_samples=2, sharded=True)
    with pytest.raises(ValueError, match="do not go together"):
        JointProxyLoss(VMFProxyLoss(CLASSES, SIZE, sharded=True), pml.ProxyAnchorLoss(CLASSES, SIZE))
