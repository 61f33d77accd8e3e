import subprocess
import sys

import numpy as np
import pytest

import fastreader as fr
from fastreader.models.packaged import PACKAGED
from fastreader.moi import PositionBias
from fastreader.moi.shipped import file_name_of, find, shipped

FILES = shipped()


def test_calibrations_of_the_packaged_reader_ship():
    sizes = {PositionBias.load(str(f)).passages for f in FILES}
    assert {3, 5} <= sizes


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_each_is_of_the_default_template_and_found(file, tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path))
    bias = PositionBias.load(str(file))
    assert file_name_of(bias) == file.name
    assert bias.reader["name"] in PACKAGED
    assert bias.template == fr.Template().digest()  # measure again when the default template changes
    found, origin = find(bias.reader["name"], bias.template, bias.passages)
    assert origin == "shipped"
    assert found.to_dict() == bias.to_dict()
    assert np.linalg.norm(bias.bias) == pytest.approx(1)
    assert bias.bias.sum() == pytest.approx(0, abs=1e-9)
    assert bias.questions >= 30
    assert len(bias.measured_on["rows"]) == bias.questions


def test_moi_imports_no_torch():
    code = "import sys, fastreader as fr; fr.moi.calibrate; fr.moi.rerank; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
