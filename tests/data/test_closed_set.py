"""Images of the training classes that training does not see."""

import pytest
import torch

from pml_nivmf.data import with_closed_set
from pml_nivmf.data.closed_set import hold_out_images
from pml_nivmf.data.splits import Source, hold_out_classes, make_splits

SIZES = {7: 10, 3: 1, 9: 5, 40: 20, 12: 2, 5: 4}
LABELS = torch.cat([torch.full((size,), label) for label, size in SIZES.items()])


def double(item):
    return item * 2


def build(labels=LABELS):
    items = torch.arange(len(labels), dtype=torch.float32)
    test = Source(torch.arange(4, dtype=torch.float32) + 100, torch.tensor([50, 50, 60, 60]))
    held_out = hold_out_classes(labels, 0.25, seed=0)
    return make_splits(Source(items, labels), test, held_out, double, torch.Tensor.clone, ())


def test_a_share_of_every_class_and_never_all_of_it():
    mask = hold_out_images(LABELS, 0.3)
    counts = {label: int(mask[label == LABELS].sum()) for label in SIZES}
    assert counts == {7: 3, 3: 0, 9: 2, 40: 6, 12: 1, 5: 1}
    assert all(int((~hold_out_images(LABELS, 0.99))[label == LABELS].sum()) == 1 for label in SIZES)


def test_the_seed_decides_and_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    assert torch.equal(hold_out_images(LABELS, 0.3), hold_out_images(LABELS, 0.3))
    assert not torch.equal(hold_out_images(LABELS, 0.3), hold_out_images(LABELS, 0.3, seed=1))
    assert torch.equal(before, torch.get_rng_state())


def test_parts_are_disjoint_complete_and_keep_their_labels():
    before = build()
    after = with_closed_set(before, 0.3)
    label_of = {item.item(): label for item, label in before.train_plain}  # items are their own numbers
    seen = {item.item(): label for item, label in after.train_plain}
    kept_out = {item.item(): label for item, label in after.closed_set}
    assert kept_out
    assert not seen.keys() & kept_out.keys()
    assert seen | kept_out == label_of
    assert [(item / 2).item() for item, _ in after.train] == list(seen), "the same items, with training transforms"
    assert torch.equal(after.train.labels, torch.tensor(list(seen.values())))
    assert after.num_classes == before.num_classes == len(after.train.labels.unique())
    assert after.test is before.test
    assert after.validation is before.validation
    assert before.closed_set is None


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan")])
def test_shares_that_are_none(share):
    with pytest.raises(ValueError, match="share must be a share of each class's images between 0 and 1"):
        with_closed_set(build(), share)


def test_less_than_an_image_is_said():
    with pytest.raises(ValueError, match=r"a share of 0\.1 of each class's images is less than one image: raise it"):
        with_closed_set(build(torch.arange(8).repeat(3)), 0.1)
