"""Jobs that make, serve and tour models, and that run many others."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from keyhole.lab.jobs.job_parts import LATER, Job, RandomModel, Wired


@dataclass(frozen=True)
class SampleJob(Wired, RandomModel):
    """Write a random model file to play with.

    Args:
        length: tokens an mlp reads.
        q: positions a token names, for an mlp, gru or lstm.
        state_bits: bits of a number of the state of a gru or lstm; 64 is not rounded.
        displacements: entries of the table of scores of a layer, or its number of positions.
        style: how a block is built: gpt2, bert or llama.
        out: file to write; KIND.safetensors when absent.
        force: overwrite an existing file.
    """

    _: KW_ONLY
    length: int = 16
    q: int = 3
    state_bits: int = 64
    displacements: int = field(default=64, metadata=LATER)
    style: str = field(default="gpt2", metadata=LATER)
    out: str | None = None
    force: bool = False


@dataclass(frozen=True)
class SweepJob(Job):
    """Run every job of a sweep file that has not been run yet.

    Args:
        file: grids and lists of jobs, .toml or .json.
        workers: processes on this machine; 0 runs the jobs in this one, one after another.
        cluster: address of a Dask scheduler to run on instead, such as tcp://HOST:8786.
        out: directory of the store and the page; runs/NAME when absent. What it holds is not run
            again.
        retry_failed: run jobs that failed again.
        resume: go on with what `out` holds, and refuse a directory that holds nothing; without it
            both are taken.
        export: also write the rows as csv, json or parquet; may be given several times.
    """

    file: str
    _: KW_ONLY
    workers: int = 2
    cluster: str | None = None
    out: str | None = None
    retry_failed: bool = False
    resume: bool = False
    export: tuple[str, ...] = ()


@dataclass(frozen=True)
class DemoJob(Job):
    """The tour: every capability on embedded defaults.

    Args:
        seed: seed of the hidden models.
        out: where to write the page; runs/TIME-demo when absent.
    """

    _: KW_ONLY
    seed: int = 0
    out: str | None = None


@dataclass(frozen=True)
class ServeJob(Job):
    """A model as a black box over HTTP.

    Args:
        model: a saved model, or any other TARGET.
        host: address to listen on; the loopback when absent.
        port: port to listen on; 0 takes a free one.
        known_as: a further name of this host that requests may give, at any port; may be given
            several times.
        name: what the model is called; the name of its file when absent.
        policy: what to do to answers, as NAME=VALUE: noise, tolerance, decimals, answers,
            token-bound, or labels; may be given several times.
        budget: no client is answered more sequences than this.
        rate: no client is answered more sequences a second than this.
        request_bytes: no request may be larger than this.
        width: size of a token, where the model does not say.
        outputs: numbers per answer, where the model does not say.
        seed: seed of the noise of a policy; drawn anew when absent.
    """

    model: str
    _: KW_ONLY
    # To this machine alone, unless somebody says otherwise.
    host: str = "127.0.0.1"
    port: int = 8000
    known_as: tuple[str, ...] = ()
    name: str | None = None
    policy: tuple[str, ...] = ()
    budget: int | None = None
    rate: float | None = None
    request_bytes: int = 1 << 22
    width: int | None = None
    outputs: int | None = None
    seed: int | None = None
