"""What every data set promises through `DataSplits`."""

import pickle

import pytest
import torch

from pml_nivmf.data.splits import LabelledItems, Source, hold_out_classes, make_splits
from pml_nivmf.data.transforms import FirstView, RandomShift, RandomView, photo_transforms

LABELS = torch.tensor([7, 3, 3, 9, 7, 40, 12, 9, 3, 40, 12, 1, 1, 5, 5, 8])


def double(item):
    return item * 2


def build(share=0.25, seed=0):
    items = torch.arange(len(LABELS), dtype=torch.float32)
    test = Source(torch.arange(4, dtype=torch.float32) + 100, torch.tensor([50, 50, 60, 60]))
    held_out = hold_out_classes(LABELS, share, seed)
    return make_splits(Source(items, LABELS), test, held_out, double, torch.Tensor.clone, ())


@pytest.mark.parametrize(("share", "held"), [(0.25, 2), (0.5, 4), (0.01, 2), (0.7, 6)])
def test_a_share_of_the_classes_is_held_out(share, held):
    mask = hold_out_classes(LABELS, share, seed=3)
    inside, outside = set(LABELS[mask].tolist()), set(LABELS[~mask].tolist())
    assert len(inside) == held
    assert not inside & outside
    assert inside | outside == set(LABELS.tolist())


def test_the_seed_decides_and_the_global_generator_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    masks = [hold_out_classes(LABELS, 0.5, seed) for seed in (0, 0, 1, 2, 3)]
    assert torch.equal(masks[0], masks[1])
    assert any(not torch.equal(masks[0], other) for other in masks[2:])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("share", [0, 0.0, 1, 1.5, -0.1, True, None, "0.5", float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ValueError, match=r"validation_share must be a share .* got"):
        hold_out_classes(LABELS, share, seed=0)


def test_too_few_classes_are_refused_by_number():
    with pytest.raises(ValueError, match="of 3 classes leaves 1 to train on"):
        hold_out_classes(torch.tensor([0, 1, 2]), 0.25, seed=0)
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, got -1"):
        hold_out_classes(LABELS, 0.25, seed=-1)


def test_parts_are_disjoint_relabelled_and_complete():
    splits = build()
    assert splits.num_classes == 6
    for part, classes in ((splits.train, 6), (splits.validation, 2), (splits.test, 2)):
        assert part.labels.dtype == torch.long
        assert part.labels.shape == (len(part),)
        assert sorted(set(part.labels.tolist())) == list(range(classes))
        assert [label for _, label in part] == part.labels.tolist()
        assert type(part[0][1]) is int
    assert sorted([*splits.train.indices.tolist(), *splits.validation.indices.tolist()]) == list(range(len(LABELS)))
    # renumbered, yet the same partition as the original labels, in ascending order
    original = LABELS[splits.train.indices]
    assert torch.equal(torch.unique(original)[splits.train.labels], original)


def test_plain_training_items_are_the_same_without_augmentation():
    splits = build()
    assert torch.equal(splits.train.labels, splits.train_plain.labels)
    for (augmented, _), (plain, _) in zip(splits.train, splits.train_plain, strict=True):
        assert torch.equal(augmented, 2 * plain)


def test_labels_are_read_without_loading_an_item():
    class Untouchable:
        def __getitem__(self, index):
            raise AssertionError("an item was loaded")

        def __len__(self):
            return 3

    part = LabelledItems(Source(Untouchable(), torch.tensor([4, 2, 4])), torch.tensor([True, True, True]), double)
    assert part.labels.tolist() == [1, 0, 1]
    assert len(part) == 3


def test_a_part_survives_pickling():
    part = build().train
    again = pickle.loads(pickle.dumps(part))
    assert [(x.item(), y) for x, y in again] == [(x.item(), y) for x, y in part]


def test_random_shift_moves_by_up_to_its_pixels_with_torch_s_generator():
    image = torch.zeros(1, 9, 9)
    image[0, 4, 4] = 1
    torch.manual_seed(0)
    places = [tuple(RandomShift(2)(image).nonzero()[0, 1:].tolist()) for _ in range(400)]
    assert set(places) == {(row, column) for row in range(2, 7) for column in range(2, 7)}
    torch.manual_seed(0)
    assert places == [tuple(RandomShift(2)(image).nonzero()[0, 1:].tolist()) for _ in range(400)]
    assert torch.equal(RandomShift(0)(image), image)
    corner = torch.zeros(1, 9, 9)
    corner[0, 0, 0] = 1
    assert {float(RandomShift(2)(corner).sum()) for _ in range(100)} == {0.0, 1.0}  # moved out, not wrapped around


def test_views():
    views = torch.arange(3.0)[:, None].expand(3, 4)
    torch.manual_seed(0)
    assert {float(RandomView()(views)[0]) for _ in range(100)} == {0.0, 1.0, 2.0}
    assert float(FirstView()(views)[0]) == 0.0


def test_photo_transforms_refuse_a_crop_larger_than_the_image():
    with pytest.raises(ValueError, match="resize must be an integer of at least 300, got 256"):
        photo_transforms(300, 256)
    with pytest.raises(ValueError, match="shift must be an integer of at least 0, got -1"):
        RandomShift(-1)
