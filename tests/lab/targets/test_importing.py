"""Modules of a person's own that cannot be imported."""

import sys

import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.targets.importing import import_target


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ("torch", r"No module named 'torch'.*my_own needs it: pip install 'keyhole\[torch\]'"),
        ("einops.layers", "my_own needs it: pip install einops"),
        ("my_own.part", "The current directory is on the path"),
    ],
)
def test_a_library_that_a_module_needs_is_named_with_the_way_to_it(
    tmp_path, monkeypatch, needs, said
):
    (tmp_path / "my_own.py").write_text(
        f"raise ModuleNotFoundError(\"No module named '{needs}'\", name='{needs}')"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidInput, match=said):
        import_target("my_own:model")
    assert "my_own" not in sys.modules
