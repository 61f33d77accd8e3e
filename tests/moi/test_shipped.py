import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from lib.simulate import bias_shape
from test_debias import known

import fastreader as fr
from fastreader.errors import InputError
from fastreader.models.loading.packaged import PACKAGED
from fastreader.moi import PositionBias
from fastreader.moi.calibration.store import SHIPPED, at_hand, file_name_of, find, keep

FILES = sorted(SHIPPED.glob("*.json"))


def test_calibrations_of_the_packaged_reader_ship():
    sizes = {PositionBias.load(str(f)).num_passages for f in FILES}
    assert {3, 5, 10} <= sizes


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_each_is_of_the_default_template_and_found(file, tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path))
    bias = PositionBias.load(str(file))
    assert file_name_of(bias) == file.name
    assert bias.reader["name"] in PACKAGED
    assert bias.template == fr.Template().digest()  # measure again when the default template changes
    found, origin = find({"name": bias.reader["name"]}, bias.template, bias.num_passages)
    assert origin == "shipped"
    assert found.to_dict() == bias.to_dict()
    assert np.linalg.norm(bias.bias) == pytest.approx(1)
    assert bias.bias.sum() == pytest.approx(0, abs=1e-9)
    assert bias.num_questions >= 30
    assert len(bias.measured_on["rows"]) == bias.num_questions


def test_kept_calibrations_do_not_overwrite_each_other(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path))
    base = known(bias_shape("decreasing", 4), template="t")
    uses = [("a/b", False), ("a_b", False), ("a_b", True), ("A b", False)]
    for tau, (name, per_token) in enumerate(uses):
        keep(replace(base, reader={"name": name}, per_token=per_token, tau=float(tau)))
    for tau, (name, per_token) in enumerate(uses):
        found, _ = find({"name": name}, "t", 4, per_token=per_token)
        assert (found.tau, found.reader["name"], found.per_token) == (tau, name, per_token)
    assert find({"name": "b"}, "t", 4) is None


def test_a_calibration_is_of_the_weights_it_was_measured_on(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path))
    base = known(bias_shape("decreasing", 4), template="t")
    packaged = {"name": "smollm2-135m"}
    one, two = {"name": "m", "revision": "0a1b"}, {"name": "m", "revision": "2c3d"}
    of_one = keep(replace(base, reader=one))
    assert find(two, "t", 4) is None  # the same name, trained on since
    assert find({"name": "m"}, "t", 4) is None
    of_two = keep(replace(base, reader=two, tau=2.0))
    assert find(one, "t", 4)[0].tau == base.tau != find(two, "t", 4)[0].tau
    assert (at_hand(one, "t").keys(), at_hand(two, "t").keys()) == ({of_one.name}, {of_two.name})
    assert at_hand({"name": "m"}, "t") == at_hand(one, "other") == {}
    elsewhere = one | {"name": "/home/somebody/m"}
    assert find(elsewhere, "t", 4)[0].reader == one
    assert at_hand(elsewhere, "t") == at_hand(one, "t")
    assert find(elsewhere, "t", 5) is None
    stray = of_two.rename(of_two.with_name(f"old-{of_two.name}"))
    assert find(two, "t", 4) is None  # a copy somebody put there
    stray.rename(of_two)
    shipped_to = fr.Template().digest()
    assert find(packaged, shipped_to, 5)[1] == "shipped"
    assert find(packaged | {"revision": "0a1b"}, shipped_to, 5) is None  # a folder of that name


def test_a_reader_without_a_name_is_known_by_its_revision(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path))
    reader = {"revision": "0a1b"}
    keep(known(bias_shape("decreasing", 4), template="t", reader=reader))
    assert find(reader, "t", 4)[1] == "cached"


def test_a_calibration_is_read_once_until_its_file_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path))
    base = known(bias_shape("decreasing", 4), template="t", reader={"name": "one"})
    keep(base)
    first = find(base.reader, "t", 4)[0]
    assert find(base.reader, "t", 4)[0] is first
    keep(replace(base, tau=2.0))
    assert find(base.reader, "t", 4)[0].tau == 2.0 != first.tau


def test_a_calibration_under_anothers_name_raises(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path))
    path = keep(known(bias_shape("decreasing", 4), template="t", reader={"name": "one"}))
    path.rename(path.with_name(path.name.replace("one", "two")))
    with pytest.raises(InputError, match=r"calibration of 'one'.*expected one of 'two'"):
        find({"name": "two"}, "t", 4)


def test_moi_imports_no_torch():
    code = "import sys, fastreader as fr; fr.moi.calibrate; fr.moi.rerank; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
