"""Result tables: intervals as in SciPy, the best in bold, dashes for missing values."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from pml_nivmf.reports import tables


def rows(**losses):
    """The rows of losses with their values over seeds, which are the values of two metrics."""
    runs = [(loss, value) for loss, values in losses.items() for value in values]
    return tables.summarise([(loss, {"test": {"recall_at_1": v, "aurc": v}, "seconds": 3.0}) for loss, v in runs])


def test_interval_is_students():
    values = [0.7, 0.74, 0.71]
    low, high = stats.t.interval(0.95, df=2, loc=np.mean(values), scale=stats.sem(values))
    estimate = tables.Estimate.of(values)
    assert (estimate.mean - estimate.half_width, estimate.mean + estimate.half_width) == pytest.approx((low, high))
    assert str(estimate) == f"71.67 ± {100 * np.std(values, ddof=1):.2f} [{100 * low:.2f}, {100 * high:.2f}]"


def test_missing_values():
    assert tables.Estimate.of([0.5, None, math.nan]) == tables.Estimate(0.5, None, None)
    assert str(tables.Estimate.of([None])) == "–"
    assert str(tables.Estimate.of([0.5], percent=False)) == "0.5000"
    table = rows(a=[0.5, 0.7], b=[None, None], c=[math.nan, 0.9])
    assert tables.best_losses(table, "recall_at_1") == ["c"]
    assert "| b | – |" in tables.as_markdown(table)
    assert tables.best_losses(rows(a=[None], b=[None]), "recall_at_1") == []


def test_of_some_metrics_the_lowest_is_best():
    table = rows(low=[0.1, 0.2], high=[0.3, 0.4])
    assert tables.best_losses(table, "recall_at_1") == ["high"]
    assert tables.best_losses(table, "aurc") == ["low"]
    assert "**15.00 ±" in tables.as_markdown(table)


def test_losses_that_tie_are_all_best(capsys):
    table = rows(a=[1.0, 1.0], b=[0.5, 0.5], c=[1.0, 1.0])
    assert tables.best_losses(table, "recall_at_1") == ["a", "c"]
    assert tables.as_markdown(table, {"recall_at_1": "R@1"}).count("**100.00") == 2
    tables.print_tables("trial", table)
    assert "Best R@1: a, c. They are level." in capsys.readouterr().out


def test_losses_need_not_have_the_same_metrics():
    table = tables.summarise([("a", {"test": {"NMI": 0.5}, "seconds": 1}), ("b", {"test": {"P": 1}, "seconds": 1})])
    assert tables.as_markdown(table).splitlines()[2].startswith("| a | **50.00** | – |")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("recall_at_8", "R@8"),
        ("certainty_auroc", "AUROC (norm)"),
        ("excess_aurc_ppk", "E-AURC (PPK)"),
        ("recall_at_coverage_80_similarity", "R@1 at 80% (similarity)"),
        ("NMI", "NMI"),
    ],
)
def test_titles(name, title):
    assert tables.short_name(name) == title


def test_a_mean_that_rests_on_one_of_several_seeds_is_not_bold():
    column = tables.Column("test.auroc", "AUROC")

    def best(*scores):
        values = {"first": [0.5, 0.6], "second": scores}
        runs = {name: [SimpleNamespace(summary={"test": {"auroc": v}}) for v in of] for name, of in values.items()}
        return tables.as_view([SimpleNamespace(name=name, runs=of) for name, of in runs.items()], [column])["best"]

    assert best(0.9, 0.8) == {"test.auroc": ["second"]}
    assert best(0.9, None) == {}
    assert best(0.9) == {"test.auroc": ["second"]}, "one seed was all there is"


def test_intervals_of_percentages_end_at_0_and_100():
    assert tables.Estimate.of([0.9, 0.99]).parts(1)[1] == "[37.3, 100.0]"
    assert tables.Estimate.of([0.0, 0.1]).parts(1)[1] == "[0.0, 68.5]"
    assert tables.Estimate.of([0.9, 0.99], percent=False).parts(1)[1] == "[0.4, 1.5]"


def test_the_terminal_says_what_may_be_noise_and_shows_galleries(capsys):
    test = {"gallery_5_shot_nearest_neighbour": 0.4, "gallery_5_shot_accuracy": 0.6, "gallery_5_shot_ece": 0.02}
    scores = [("best", 0.8), ("best", 0.9), ("close", 0.7), ("close", 0.9), ("far", 0.1), ("far", 0.11)]
    runs = [(loss, {"test": {"recall_at_1": score} | test, "seconds": 1}) for loss, score in scores]
    tables.print_tables("trial", tables.summarise(runs))
    first, _, second = capsys.readouterr().out.partition("Best R@1: best. Overlapping intervals, so the order is ")
    assert "85.00" in first
    assert second.startswith("uncertain: close.")
    assert "Test classes enrolled with at most 5 images each" in second
    assert "40.00 ± 0.00" in second
    tables.print_tables("trial", tables.summarise(runs[::2]))
    assert "With a single seed there is no interval" in capsys.readouterr().out
