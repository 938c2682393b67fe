"""The benchmark measures every loss, counts memory, and prints its measurements. Nothing here is timed."""

import json

import pytest
import torch

from pml_nivmf import cli
from pml_nivmf.experiments import bench


def run(capsys, *options):
    assert cli.main(["bench", "--rounds", "1", *options]) == 0
    return capsys.readouterr().out


def test_every_loss_is_measured_at_every_shape(capsys):
    rows = json.loads(run(capsys, "--shape", "8", "6", "16", "3", "--shape", *"4382", "--json"))
    names = {row["loss"].split(",")[0] for row in rows}
    assert names >= {"ProxyNCALoss", "ProxyAnchorLoss", "NonIsotropicVMFLoss", "VMFProxyLoss"}
    assert {row["classes"] for row in rows} == {6, 3}
    assert all(row["milliseconds"] > 0 and row["ratio"] > 0 and row["peak_megabytes"] > 0 for row in rows)
    assert all(row["ratio"] == 1 for row in rows if row["loss"] == bench.BASELINE)


def test_every_softmax_is_measured_at_every_number_of_classes(capsys):
    rows = json.loads(run(capsys, "--classes", "20,50", "--json"))
    assert {row["classes"] for row in rows} == {20, 50}
    assert {row["loss"].split(",")[0] for row in rows} == {"ProxyAnchorLoss", "EL-nivMF", "EL-nivMF analytic"}
    assert all(row["milliseconds"] > 0 and row["extra_megabytes"] > 0 for row in rows)
    assert rows[0]["peak_megabytes"] - rows[0]["extra_megabytes"] == pytest.approx(20 * 128 * 4e-6)


def test_table_has_a_block_for_each_shape(capsys):
    measured = {"milliseconds": 1234.5, "ratio": 2.0, "peak_megabytes": 3.0, "extra_megabytes": 1.0}
    shapes = [bench.Shape(8, 6, 16, 3), bench.Shape(4, 3, 8, 2)]
    bench.show([{"loss": bench.BASELINE, **shape._asdict(), **measured} for shape in shapes], "times")
    table = capsys.readouterr().out
    assert table.count("1,234.500") == 2
    assert table.count("peak MB") == 2
    assert "\n8 images, 6 classes, 16 dimensions, 3 samples\n" in table


def test_peak_memory_counts_what_is_alive_at_once():
    kept = []

    def step():
        first = torch.zeros(1_000_000)  # 4 MB
        second = first + 1  # 4 MB more
        del first
        kept[:] = [second + 1]  # 8 MB alive again

    assert bench.peak_megabytes(step, torch.device("cpu")) == pytest.approx(8, abs=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shape", "4", "3"], "expected 4 arguments"),
        (["--shape", *"4082"], "must be an integer of at least 1, got '0'"),
        (["--rounds", "0"], "must be an integer of at least 1, got '0'"),
        (["--classes", "100,many"], "must be an integer of at least 1, got 'many'"),
    ],
)
def test_wrong_numbers(options, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["bench", *options])
    assert message in capsys.readouterr().err


def test_a_gallery_needs_three_numbers_or_none(capsys):
    assert cli.main(["bench", "--gallery", "300"]) == 2
    assert "takes images, classes and dimensions, or nothing, got [300]" in capsys.readouterr().err


def test_galleries_are_measured_beside_a_plain_search(capsys):
    rows = json.loads(run(capsys, "--gallery", "300", "30", "8", "--json"))
    assert all(row["seconds"] > 0 for row in rows)
    assert [row["ratio"] > 0 for row in rows if "ratio" in row] == [True]
    table = run(capsys, "--gallery", "300", "30", "8")
    assert all(row["step"] in table for row in rows)
