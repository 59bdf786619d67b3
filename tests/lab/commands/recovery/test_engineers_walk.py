"""The engineer's walk: from a torch model of one's own to the page of an audit, and a copy."""

import json
import re
import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
MINE = """
import torch
torch.manual_seed(5)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(30, 4)
        self.attention = torch.nn.MultiheadAttention(4, 1, bias=False, batch_first=True)
        self.out = torch.nn.Linear(4, 2)
    def forward(self, ids):
        x = self.words(ids)
        return self.out(self.attention(x, x, x, need_weights=False)[0])
model = Model().double().eval()
"""


@pytest.mark.slow
def test_four_commands_lead_from_a_model_of_ones_own_to_an_audit_and_a_copy(keyhole, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    start = time.monotonic()
    seen = keyhole("inspect", "mine:model")
    assert seen.code == 0, seen.err
    (layer,) = set(re.findall(r"--layer (\S+)", seen.out))
    learned = keyhole("learn", "mine:model", "--layer", layer, "--out", "run", "--json")
    assert (learned.code, learned.json["verdict"]) == (0, "EXACT")
    audited = keyhole("audit", "mine:model", "--layer", layer, "--out", "audit", "--json")
    assert audited.code == 0, audited.err
    assert audited.json["recommendation"].startswith("Recommended: ")
    page = (tmp_path / "audit" / "report.html").read_text()
    assert audited.json["recommendation"] in page
    assert len(re.findall(r"<svg", page)) >= 1
    compared = keyhole("compare", "mine:model", learned.json["model"], "--layer", layer, "--json")
    assert json.loads(compared.out)["answers"]["same"]
    # Four commands; seconds on a machine that others share.
    assert time.monotonic() - start < 180
