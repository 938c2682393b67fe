"""Galleries compared with the true posterior, with scikit-learn, and with themselves in another order or in chunks."""

import numpy as np
import pytest
import torch
from pytorch_metric_learning.utils.inference import InferenceModel
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from pml_nivmf.inference import ClassGallery, WithinClassShape, fitting, mixture
from pml_nivmf.metrics import certainty_auroc, expected_calibration_error
from tests.inference.galleries import DIM, draw, enrol, halves


def nll(probabilities, labels):
    return float(-probabilities.double().clamp_min(1e-12).log()[torch.arange(len(labels)), labels].mean())


@pytest.fixture(scope="module")
def enrolled():
    """(gallery, queries, their labels, true posterior of the queries): 20 classes of 30 images."""
    embeddings, labels, posterior = draw(classes=20, per_class=80)
    known, asked = halves(labels, shots=30)
    gallery = enrol(embeddings[known], labels[known]).fit()
    return gallery, embeddings[asked], labels[asked], posterior(embeddings[asked])


def test_probabilities_are_close_to_the_true_posterior(enrolled):
    gallery, queries, labels, truth = enrolled
    probabilities = gallery(queries)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(len(queries)))
    assert nll(probabilities, labels) < nll(truth, labels) + 0.25
    assert expected_calibration_error(probabilities, labels) < 0.05


@pytest.mark.parametrize("shots", [3, 10, 30])
def test_better_than_nearest_neighbours_and_close_to_discriminant_analysis_where_that_is_true(shots):
    embeddings, labels, _ = draw(classes=20, per_class=80, seed=1)
    known, asked = halves(labels, shots)
    probabilities = enrol(embeddings[known], labels[known]).fit()(embeddings[asked])
    directions = F.normalize(embeddings)
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(directions[known], labels[known])
    nearest = labels[known][(directions[asked] @ directions[known].T).argmax(1)]
    accuracy, baseline = ((answers == labels[asked]).double().mean() for answers in (probabilities.argmax(1), nearest))
    assert accuracy > baseline + 0.1
    theirs = torch.from_numpy(lda.predict_proba(directions[asked]))
    assert nll(probabilities, labels[asked]) < nll(theirs, labels[asked]) + 0.05


def test_answers_are_as_precise_as_asked_and_name_the_images_that_spoke(enrolled):
    gallery, queries, labels, _ = enrolled
    answers = gallery.identify(queries, precision=0.9)
    right = [a.label == label for a, label in zip(answers, labels.tolist(), strict=True) if a.label is not None]
    assert len(right) > 0.3 * len(answers)
    assert np.mean(right) > 0.85
    answer, probabilities = answers[0], gallery(queries[:1])[0]
    assert answer.probability == pytest.approx(float(probabilities.max()))
    assert gallery.labels.index(answer.best) == int(probabilities.argmax())
    rows = [evidence.row for evidence in answer.evidence]
    assert all(gallery.labels[gallery.classes[row]] == answer.best for row in rows)
    assert [evidence.share for evidence in answer.evidence] == sorted((e.share for e in answer.evidence), reverse=True)
    assert gallery.identify(gallery.embeddings[5:6])[0].evidence[0].row == 5  # an enrolled image speaks for itself


def test_where_all_left_out_images_were_certain_the_probability_decides():
    directions = torch.eye(8)[:3] + 0.05 * torch.randn(6, 3, 8, generator=torch.Generator().manual_seed(0))
    gallery = enrol(directions.view(-1, 8), torch.arange(18) % 3).fit()
    between = torch.lerp(directions[0, 0], directions[0, 1], torch.linspace(0, 1, 40)[:, None])
    answers = gallery.identify(between, precision=0.9)
    assert all(bool(answer.refusal) == (answer.probability < 0.9) for answer in answers)
    assert not any(answer.refusal for answer in gallery.identify(between, precision=0.3))


def test_label_sets_cover_as_often_as_asked(enrolled):
    gallery, queries, labels, _ = enrolled
    for coverage in (0.8, 0.9, 0.99):
        sets = gallery.label_sets(queries, coverage)
        share = np.mean([label in labels for label, labels in zip(labels.tolist(), sets, strict=True)])
        assert abs(share - coverage) < 0.04
    assert [len(labels) for labels in gallery.label_sets(queries[:3], 1.0)] == [20] * 3
    assert gallery.label_sets(queries[:3], 0.0) == [[answer.best] for answer in gallery.identify(queries[:3])]


def test_unknown_classes_are_told_better_than_by_the_largest_cosine():
    embeddings, labels, _ = draw(classes=40, per_class=40)
    known, asked = halves(labels, shots=10)
    gallery = enrol(embeddings[known & (labels < 20)], labels[known & (labels < 20)])
    answers = gallery.fit().identify(embeddings[asked])
    enrolled = (labels[asked] < 20).numpy()
    cosine = (F.normalize(embeddings[asked]) @ F.normalize(gallery.embeddings).T).amax(1)
    scores = [answer.known for answer in answers]
    assert certainty_auroc(scores, enrolled) > certainty_auroc(cosine, enrolled) + 0.1
    refused = np.array([answer.label is None for answer in answers])
    assert refused[~enrolled].mean() > refused[enrolled].mean() + 0.15


def test_folds_keep_queries_out_of_gallery_and_shape(monkeypatch):
    seen = []
    monkeypatch.setattr(fitting, "Fold", lambda queries, gallery, shape, *_: seen.append((queries, gallery, shape)))
    classes = torch.tensor([0, 0, 1, 1, 1, 2])
    list(fitting._leave_out(torch.zeros(6, 2), classes, lambda rows: None, most=100))
    assert len(seen) == 3
    for queries, gallery, shape in seen:
        assert not set(queries.tolist()) & (set(gallery.tolist()) | set(shape.tolist()))
        assert set(classes[gallery].tolist()) == {0, 1, 2}  # every class remains
        assert len(set(classes[queries].tolist())) == len(queries)  # one image of each class
    assert sorted(torch.cat([queries for queries, *_ in seen]).tolist()) == [0, 1, 2, 3, 4]


def test_one_image_per_class_uses_the_values_of_the_prior(tmp_path):
    embeddings, labels, _ = draw(classes=60, per_class=30)
    prior = WithinClassShape.from_embeddings(embeddings[labels >= 30], labels[labels >= 30])
    known, asked = halves(labels, shots=1)
    known, asked = known & (labels < 30), asked & (labels < 30)
    gallery = enrol(embeddings[known], labels[known], prior).fit()
    probabilities = gallery(embeddings[asked])
    gallery.save(tmp_path / "gallery.safetensors")
    assert torch.equal(ClassGallery.load(tmp_path / "gallery.safetensors")(embeddings[asked]), probabilities)
    assert expected_calibration_error(probabilities, labels[asked]) < 0.05
    cosine = F.normalize(embeddings[asked]) @ F.normalize(embeddings[known]).T
    ours, nearest = ((scores.argmax(1) == labels[asked]).float().mean() for scores in (probabilities, cosine))
    assert ours > nearest


def test_norms_count_only_where_they_tell_how_certain_a_query_is():
    """Embeddings that are means of more or fewer noisy views; norms say how many, or nothing."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(20).repeat_interleave(40)
    views = torch.randint(1, 10, (len(labels), 1), generator=generator)
    noise = torch.randn(len(labels), DIM, generator=generator) / views.sqrt()
    directions = F.normalize(F.normalize(torch.randn(20, DIM, generator=generator))[labels] + 0.5 * noise)
    shuffled = views[torch.randperm(len(labels), generator=generator)]
    gallery = enrol(directions * views, labels).fit()
    assert gallery.space.fitted.norm_power > 0
    vague, certain = (gallery.identify(scale * directions[:1])[0] for scale in (0.1, 10.0))
    assert vague.probability < certain.probability - 0.01
    assert vague.known == pytest.approx(certain.known, abs=1e-5)  # the direction tells
    assert enrol(directions * shuffled, labels).fit().space.fitted.norm_power == 0


def test_adding_later_changes_nothing_but_the_images(enrolled, monkeypatch):
    gallery, queries, *_ = enrolled
    monkeypatch.setattr(mixture, "_SMALLEST_INDEX", 100)
    everything, first, without_3 = torch.ones(600, dtype=torch.bool), torch.arange(600) < 400, gallery.classes != 3
    copies = [enrol(gallery.embeddings[rows], gallery.classes[rows]) for rows in (everything, first, without_3)]
    for copy in copies:
        copy.space = mixture.GallerySpace(gallery.space.axes, gallery.space.fitted, "Flat")
    whole, grown, alone = copies
    grown(queries[:2])
    grown.add(gallery.embeddings[400:], gallery.classes[400:])
    torch.testing.assert_close(grown(queries), whole(queries))
    whole.remove(3)
    assert whole.labels == [label for label in range(20) if label != 3]
    assert len(whole) == len(whole.names) == 570
    torch.testing.assert_close(whole(queries), alone(queries))


def test_chunks_change_nothing(enrolled, monkeypatch):
    gallery, queries, *_ = enrolled
    expected = gallery(queries)
    monkeypatch.setattr(mixture, "CHUNK", 7 * len(gallery))
    torch.testing.assert_close(gallery(queries), expected)


def test_with_an_inference_model():
    embeddings, labels, _ = draw(classes=5, per_class=6)
    model = InferenceModel(torch.nn.Identity(), data_device="cpu")  # it normalises, by default
    gallery = ClassGallery()
    dataset = TensorDataset(embeddings, labels)
    dataset.classes = list("abcde")
    gallery.add_dataset(model, dataset, batch_size=7)
    assert gallery.labels == list("abcde")
    assert torch.equal(gallery.embeddings, embeddings)
    assert model.normalize_embeddings
    assert gallery.fit().identify_images(model, embeddings[:4]) == gallery.identify(embeddings[:4])


@pytest.mark.parametrize(
    ("embeddings", "labels", "problem"),
    [
        (torch.ones(1, 5), [0], "must have 4 columns, as the enrolled ones, got 5"),
        (torch.full((1, 4), torch.nan), [0], "NaN.* row 0"),
        (torch.ones(2, 4), [0], "labels must have one entry for each of 2 embeddings, got 1"),
        (torch.ones(1, 4), [1.5], "a label must be an integer or a string, got 1.5"),
        (torch.ones(2, 4), [1, True], "a label must be an integer or a string, got True"),
    ],
)
def test_refuses_what_cannot_be_enrolled(embeddings, labels, problem):
    gallery = enrol(torch.randn(2, 4), ["Volvo", 7])
    with pytest.raises(ValueError, match=problem):
        gallery.add(embeddings, labels)
    assert len(gallery) == len(gallery.embeddings) == 2
    assert gallery.labels == ["Volvo", 7]


def test_says_what_is_missing():
    gallery = ClassGallery()
    for ask in (gallery.fit, lambda: gallery(torch.randn(1, 4))):
        with pytest.raises(ValueError, match="the gallery is empty"):
            ask()
    gallery.add(torch.randn(3, 4), ["a"] * 3)
    with pytest.raises(ValueError, match="call fit"):
        gallery(torch.randn(1, 4))
    with pytest.raises(ValueError, match="3 images of 1 classes are too few"):
        gallery.fit()
    with pytest.raises(ValueError, match="'b' is not enrolled"):
        gallery.remove("b")


def test_large_galleries_learn_from_some_classes(enrolled, monkeypatch):
    gallery, queries, labels, _ = enrolled
    monkeypatch.setattr(fitting, "_MOST_IMAGES", 400)
    part = enrol(gallery.embeddings, gallery.classes).fit()
    assert nll(part(queries), labels) < nll(gallery(queries), labels) + 0.1


@pytest.mark.parametrize("offset", [10.0, 100.0])
def test_embeddings_in_a_narrow_cone(offset):
    """A model that was trained on few classes: all cosines are above 0.99, or 0.9999."""
    embeddings, labels, _ = draw(classes=20, per_class=40, seed=3, spread=0.4)
    embeddings[:, 0] += offset
    known, asked = halves(labels, shots=20)
    probabilities = enrol(embeddings[known], labels[known]).fit()(embeddings[asked])
    assert (probabilities.argmax(1) == labels[asked]).float().mean() > 0.9
    assert nll(probabilities, labels[asked]) < 0.3
