"""Files are written whole or not at all."""

import json
import math

import pytest

from pml_nivmf.files import remove_partial, write_atomically, write_json, write_text


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "new" / "a.txt"
    write_text(path, "old ✓")

    def fail(file):
        file.write(b"half of the new")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, fail)
    assert path.read_text(encoding="utf-8") == "old ✓"
    assert list(path.parent.iterdir()) == [path]


def test_what_a_killed_process_leaves_is_removed(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / ".a.json.123.partial").touch()
    write_text(tmp_path / "a.json", "{}")
    remove_partial(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.json"]


def test_json_has_no_nan(tmp_path):
    write_json(tmp_path / "a.json", {"a": [1.0, math.nan, (-math.inf, "b")], "c": {"d": True}})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1.0, None, [None, "b"]], "c": {"d": True}}
