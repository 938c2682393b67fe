"""Two gloo ranks find the gradients of one process with the joined batch; also with classes spread over the ranks."""

import pytest
import torch

from pml_nivmf.losses import ShardedSoftmax, VMFProxyLoss, load_whole_state_dict

from . import two_ranks
from .two_ranks import CLASSES, OURS, RANKS, SIZE


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The results of each rank, by case."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(two_ranks.work, args=(folder,), nprocs=RANKS)
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(RANKS)]


def assert_same(actual, expected):
    assert set(expected) <= set(actual)
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-9, atol=1e-10, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("name", two_ranks.CASES)
def test_two_ranks_give_the_gradients_of_one(ranks, name):
    expected = two_ranks.CASES[name][1]()
    for results in ranks:
        assert_same(results[name], expected)


def test_logits_of_all_classes(ranks):
    model, loss = two_ranks.model_and_loss(OURS["el_vmf"])
    features, labels = two_ranks.batch(0)
    loss(model(features), labels)  # calibrates
    expected = loss.get_logits(model(features))
    torch.testing.assert_close(torch.cat([results["el_vmf, sharded"]["logits"] for results in ranks]), expected)


@pytest.mark.filterwarnings("ignore:warm start")
def test_whole_state_after_two_steps_is_that_of_one_process(ranks):
    model, loss = two_ranks.model_and_loss(OURS["in_chunks"])
    two_ranks.train(model, loss)
    for results in ranks:
        assert_same(results["training"]["loss"], loss.state_dict())
        assert_same(results["training"]["model"], model.state_dict())


def test_equal_seeds_do_not_make_equal_shards(ranks):
    rows = [results["initial rows"]["proxies"] for results in ranks]
    assert [len(part) for part in rows] == [3, 4]
    assert not torch.equal(rows[0], rows[1][:3])


def test_each_rank_takes_its_rows_of_the_whole_state(monkeypatch):
    whole = VMFProxyLoss(CLASSES, SIZE)
    monkeypatch.setattr("pml_nivmf.losses.softmax.rank", lambda: 1)
    monkeypatch.setattr("pml_nivmf.losses.softmax.world", lambda: 3)
    loss = VMFProxyLoss(CLASSES, SIZE, softmax=ShardedSoftmax())
    assert [len(shard) for shard in loss.softmax.shards(CLASSES)] == [2, 2, 3]
    load_whole_state_dict(loss, whole.state_dict())
    assert torch.equal(loss.proxies, whole.proxies[2:4])
    with pytest.raises(ValueError, match="2 classes cannot be spread over 3 ranks"):
        VMFProxyLoss(2, SIZE, softmax=ShardedSoftmax())
