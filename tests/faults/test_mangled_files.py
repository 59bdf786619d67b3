"""Files of every kind that is read, mangled at random: each is read, or refused in a sentence."""

import functools
import resource
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import keyhole
from keyhole.constructions.files.unit_files import load
from keyhole.errors import KeyholeError
from keyhole.lab.commands.recovery.witness import read_witness
from keyhole.lab.jobs import BuildJob, LearnJob, ReportJob, SampleJob
from keyhole.lab.onnx.export import export_onnx
from keyhole.lab.running import run_job
from keyhole.lab.runs.reading import read_run
from keyhole.lab.sweeps.files import read_sweep
from keyhole.lab.targets.opening import load_bases, load_tokens, open_target
from keyhole.oracles.tokens.onnx_ids import open_onnx_ids
from support.mangling import flip_bits, mangle
from support.outcomes import find_faults_of_sentence, print_counts

KINDS = ("head", "multihead", "relu", "smooth", "gated", "onelayer", "layer", "block", "mlp", "gru")
SWEEP = """job = "trial"
name = "grid"
[base]
model.kind = "head"
model.width = 2
[grid]
model.rank = [1, 2]
seed.range = [0, 3]
[[expect]]
value = "queries"
statistic = "max"
at_most = 100
[figure]
x = "rank"
y = "queries"
"""


def ask_model(path):
    """As commands do with a TARGET: open it, and ask."""
    oracle = open_target(str(path), width=None, outputs=None)
    oracle.ask(np.ones((2, 3, oracle.width)))


def read_run_beside(read, path):
    return read(str(path.parent))


def ask_language_model(path):
    """As --tokens-in does."""
    oracle = open_onnx_ids(path, 5)
    oracle.ask(np.ones((2, 3), dtype=np.int64))


READERS = {
    "model.onnx": ask_model,
    "inspected.onnx": lambda path: keyhole.inspect(str(path)),
    "inspected.safetensors": lambda path: keyhole.inspect(str(path)),
    "ids.onnx": ask_language_model,
    "model.safetensors": ask_model,
    "attacked.safetensors": load,
    "sweep.toml": lambda path: read_sweep(str(path)),
    "sweep.json": lambda path: read_sweep(str(path)),
    "tokens.npy": lambda path: load_tokens(str(path)),
    "tokens.csv": lambda path: load_tokens(str(path)),
    "tokens.safetensors": lambda path: load_tokens(str(path)),
    "bases.npy": lambda path: load_bases(str(path)),
    "record.json": functools.partial(read_run_beside, read_run),
    "witness/record.json": functools.partial(read_run_beside, read_witness),
    "report/record.json": functools.partial(
        read_run_beside, lambda run: run_job(ReportJob((run,)))
    ),
}


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Good files as (name of their reader, bytes)."""
    place = tmp_path_factory.mktemp("seeds")
    found = []
    for kind in KINDS:
        run_job(SampleJob(kind, width=3, hidden=3, out=str(place / f"{kind}.safetensors")))
        # Networks to attack are never asked.
        reader = "attacked" if kind in ("mlp", "gru") else "model"
        found.append((f"{reader}.safetensors", (place / f"{kind}.safetensors").read_bytes()))
    for task, sizes in (("match2", {"modulus": 3}), ("sparse-average", {"q": 1, "width": 2})):
        run_job(BuildJob(task, length=4, out=str(place / task), **sizes))
        found.append(("model.safetensors", (place / task / "model.safetensors").read_bytes()))
    head, heads = str(place / "head.safetensors"), str(place / "multihead.safetensors")
    run_job(LearnJob(head, out=str(place / "learned")))
    run_job(LearnJob(heads, learner="low-rank", out=str(place / "refuted")))
    for run in ("learned", "refuted", "match2"):
        record = (place / run / "record.json").read_bytes()
        found += [("record.json", record), ("witness/record.json", record)]
        found.append(("report/record.json", record))
    text = (
        '{"job": "trial", "base": {"model": {"kind": "head", "width": 2}}, "grid": {"seed": [1]}}'
    )
    np.save(place / "tokens.npy", np.arange(12.0).reshape(4, 3))
    np.save(place / "bases.npy", np.arange(12.0).reshape(2, 3, 2))
    numbers = {name: (place / name).read_bytes() for name in ("tokens.npy", "bases.npy")}
    found += [("sweep.toml", SWEEP.encode()), ("sweep.json", text.encode()), *numbers.items()]
    found += [("tokens.csv", b"1,2,3\n4,5,6\n"), ("tokens.safetensors", found[0][1])]
    return found


def read_mangled(name, data, place):
    """The outcome of reading a file, and what is wrong with it."""
    path = place / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    try:
        READERS[name](path)
    except KeyholeError as error:
        return type(error).__name__, find_faults_of_sentence(str(error))
    except Exception as error:
        return "no sentence", [f"{type(error).__name__}: {error}"]
    return "read", []


def read_many(count, seeds, place, rng):
    """Counts by outcome, the worst cases, and by how many MB the memory has grown."""
    counts, bad = Counter(), []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(count):
        name, data = seeds[rng.integers(len(seeds))]
        # A page takes fifty times as long to draw as a file to read.
        if name.startswith("report") and rng.random() > 0.1:
            continue
        mangled = mangle(data, rng)
        outcome, wrong = read_mangled(name, mangled, place)
        counts[outcome] += 1
        if wrong:
            bad.append((name, wrong, mangled[:300]))
    return counts, bad, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("count", "seed"),
    [(5_500, 1), *(pytest.param(13_800, seed, marks=pytest.mark.slow) for seed in range(2, 10))],
)
def test_a_mangled_file_is_read_or_refused_in_a_sentence(count, seed, seeds, tmp_path):
    counts, bad, grown = read_many(count, seeds, tmp_path, np.random.default_rng(seed))
    print_counts(f"mangled files ({grown:.0f} MB more)", counts)
    assert not bad[:3]
    assert min(counts["read"], counts["InvalidInput"]) > counts.total() / 20
    assert grown < 100


def test_every_seed_is_read_before_it_is_mangled(seeds, tmp_path):
    outcomes = {(name, read_mangled(name, data, Path(tmp_path))[0]) for name, data in seeds}
    assert {name for name, outcome in outcomes if outcome == "read"} >= {
        "model.safetensors",
        "attacked.safetensors",
        "sweep.toml",
        "sweep.json",
        "tokens.npy",
        "tokens.csv",
        "bases.npy",
        "record.json",
        "report/record.json",
        "witness/record.json",
    }


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """Models in ONNX files as (name of their reader, bytes)."""
    place = tmp_path_factory.mktemp("graphs")
    found = []
    for kind in ("head", "multihead", "relu"):
        run_job(SampleJob(kind, width=3, hidden=3, out=str(place / f"{kind}.safetensors")))
        export_onnx(keyhole.load(place / f"{kind}.safetensors"), place / f"{kind}.onnx")
        data = (place / f"{kind}.onnx").read_bytes()
        found += [("model.onnx", data), ("inspected.onnx", data), ("ids.onnx", data)]
    weights = {"attention.q_proj.weight": np.eye(4), "attention.k_proj.weight": np.eye(4)}
    weights |= {"attention.v_proj.weight": np.eye(4), "attention.o_proj.weight": np.eye(4)}
    save_file(weights, place / "weights.safetensors")
    return [*found, ("inspected.safetensors", (place / "weights.safetensors").read_bytes())]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("count", "seed"), [(300, 1), pytest.param(20_000, 2, marks=pytest.mark.slow)]
)
def test_a_mangled_graph_is_read_or_refused_and_nothing_of_it_reaches_the_terminal(
    count, seed, graphs, tmp_path, capfd
):
    rng = np.random.default_rng(seed)
    outcomes = []
    for _ in range(count):
        name, data = graphs[rng.integers(len(graphs))]
        # Most graphs that are mangled more than by some bits are refused at once.
        spoilt = (flip_bits if rng.random() < 0.8 else mangle)(data, rng)
        outcomes.append((name, *read_mangled(name, spoilt, tmp_path)))
    # The runtime would write from C, around sys.stdout.
    assert capfd.readouterr() == ("", "")
    with capfd.disabled():
        print_counts("mangled graphs", Counter(outcome for _, outcome, _ in outcomes))
    assert not [one for one in outcomes if one[2]][:3]
    assert {name for name, outcome, _ in outcomes if outcome == "read"} >= {
        "model.onnx",
        "inspected.onnx",
        "inspected.safetensors",
    }
