"""What every data set guarantees through `DataSplits`."""

import pickle

import pytest
import torch

from pml_nivmf.data import class_split
from pml_nivmf.data.splits import Source, hold_out_classes, make_splits

SIZES = {7: 10, 3: 1, 9: 5, 40: 20, 12: 2, 5: 4, 1: 3, 8: 2}  # label -> items
LABELS = torch.cat([torch.full((size,), label) for label, size in SIZES.items()])


def double(item):
    return item * 2


def build(labels=LABELS, share=0.25):
    """Items are their own numbers; training doubles them, degradation makes them negative."""
    items = torch.arange(len(labels), dtype=torch.float32)
    test = Source(torch.arange(4, dtype=torch.float32) + 100, torch.tensor([50, 50, 60, 60]))
    held_out = hold_out_classes(labels, share, seed=0)
    degraded = Source(-items, labels)
    return make_splits(Source(items, labels), test, held_out, double, torch.Tensor.clone, (), train_degraded=degraded)


@pytest.mark.parametrize(("share", "count"), [(0.25, 2), (0.5, 4), (0.01, 2), (0.7, 6)])
def test_a_share_of_the_classes_is_held_out(share, count):
    mask = hold_out_classes(LABELS, share, seed=3)
    inside, outside = set(LABELS[mask].tolist()), set(LABELS[~mask].tolist())
    assert len(inside) == count
    assert not inside & outside
    assert inside | outside == set(SIZES)


@pytest.mark.parametrize(
    ("seed", "classes"), [(0, [4, 9, 13, 14, 23, 25, 27, 29]), (2, [3, 9, 16, 17, 18, 23, 24, 27])]
)
def test_a_seed_holds_out_the_classes_that_results_were_computed_with(seed, classes):
    before = torch.get_rng_state()
    assert torch.arange(30)[hold_out_classes(torch.arange(30), 0.25, seed)].tolist() == classes
    assert torch.equal(before, torch.get_rng_state())


def test_too_few_classes_and_invalid_arguments():
    with pytest.raises(ValueError, match="holds out 2 of 3 classes, but 2 must remain: at least 4 classes are needed"):
        hold_out_classes(torch.tensor([0, 1, 2]), 0.25, seed=0)
    with pytest.raises(ValueError, match=r"=0\.9 holds out 4 of 4 classes, but 2 must remain: lower it"):
        hold_out_classes(torch.arange(4), 0.9, seed=0)
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, got -1"):
        hold_out_classes(LABELS, 0.25, seed=-1)
    for share in (1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match=f"validation_share must be at .* got {share}"):
            hold_out_classes(LABELS, share, seed=0)


def test_parts_are_disjoint_complete_and_relabelled():
    splits = build()
    assert splits.num_classes == 6
    for part, classes in ((splits.train, 6), (splits.validation, 2), (splits.test, 2)):
        assert part.labels.dtype == torch.long
        assert sorted(set(part.labels.tolist())) == list(range(classes))
        assert [label for _, label in part] == part.labels.tolist()
        assert type(part[0][1]) is int
    assert sorted([*splits.train.indices.tolist(), *splits.validation.indices.tolist()]) == list(range(len(LABELS)))
    original = LABELS[splits.train.indices]
    assert torch.equal(torch.unique(original)[splits.train.labels], original)  # the same classes, in ascending order
    for (augmented, label), (plain, same) in zip(splits.train, splits.train_plain, strict=True):
        assert (augmented.item(), label) == (2 * plain.item(), same)


def test_a_share_of_0_trains_on_all_classes():
    splits = build(share=0)
    assert (len(splits.train), len(splits.validation), splits.num_classes) == (len(LABELS), 0, len(SIZES))


def test_every_class_is_held_out_by_one_of_the_class_splits():
    parts = [class_split(build(share=0), number, 3) for number in range(3)]
    held_out = [set(LABELS[part.validation.indices].tolist()) for part in parts]
    assert sorted(map(len, held_out)) == [2, 3, 3]
    assert set.union(*held_out) == set(SIZES)
    for part, classes in zip(parts, held_out, strict=True):
        assert set(LABELS[part.train.indices].tolist()) == set(SIZES) - classes
        assert sorted(set(part.train.labels.tolist())) == list(range(part.num_classes))
        assert [2 * item.item() for item, _ in part.train_plain] == [item.item() for item, _ in part.train]
        assert [(-item.item(), y) for item, y in part.train_degraded] == [(x.item(), y) for x, y in part.train_plain]
        assert [item.item() for item, _ in part.validation] == part.validation.indices.tolist()
    for number, count, message in ((3, 3, "split must be 0 … 2"), (None, 3, "got None"), (0, 5, "5 splits of 8 train")):
        with pytest.raises(ValueError, match=message):
            class_split(build(share=0), number, count)


def test_a_part_survives_pickling():
    part = build().train
    again = pickle.loads(pickle.dumps(part))
    assert [(x.item(), y) for x, y in again] == [(x.item(), y) for x, y in part]
