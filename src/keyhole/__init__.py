"""keyhole: what an attention layer can compute, and what its answers give away.

Names are loaded when first used, so that importing the package is quick and pulls in nothing
optional.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keyhole.bounds.attacks import Attack, Attacked, attack
    from keyhole.bounds.channel import sign_channel
    from keyhole.bounds.disjointness import Reduction, reduction
    from keyhole.bounds.formulas import Inequality
    from keyhole.bounds.protocol import Conversation, EffectiveBits, converse, effective_bits
    from keyhole.bounds.verdicts import Bound, BoundVerdict, Gap, bound, bound_network
    from keyhole.claims import THEOREMS, Certificate, Check, Outcome, Theorem, Verdict
    from keyhole.constructions import Built, Checked, Construction, Size, build, load, save
    from keyhole.errors import (
        BadAnswer,
        BudgetSpent,
        DifferentRun,
        DoesNotFit,
        InvalidInput,
        KeyholeError,
        OracleError,
        RecoveryFailed,
        TargetFailed,
    )
    from keyhole.identify import Distance, Symmetry, Twin, canonical, freedom, twins
    from keyhole.identify import distance as compare
    from keyhole.lab.onnx.export import export_onnx
    from keyhole.learners.base import Counterexample, Fresh, Plan, Recovery, Status
    from keyhole.learners.casts.learner import Balanced
    from keyhole.learners.choosing import learn
    from keyhole.learners.heads_in_ball.learner import HeadsInBall
    from keyhole.learners.labels.learner import Labels
    from keyhole.learners.layer.learner import WholeLayer
    from keyhole.learners.network_in_ball.learner import NetworkInBall
    from keyhole.learners.network_under_noise.learner import NetworkUnderNoise
    from keyhole.learners.networks.learner import Network
    from keyhole.learners.noise.learner import UnderNoise
    from keyhole.learners.one_head.exact import Exact
    from keyhole.learners.one_head.grid import Grid
    from keyhole.learners.one_head.low_rank import LowRank
    from keyhole.learners.one_head.nuclear import NuclearNorm
    from keyhole.learners.one_head.nystrom import Nystrom
    from keyhole.learners.one_layer.antisymmetric import Antisymmetric
    from keyhole.learners.one_layer.learner import OneLayerTransformer
    from keyhole.learners.published.orthogonal import Orthogonal
    from keyhole.learners.published.repetition import Repetition
    from keyhole.learners.registry import Hints
    from keyhole.learners.several_heads.learner import SeveralHeads
    from keyhole.learners.smooth_network.learner import SmoothNetwork
    from keyhole.learners.tolerance.guarantees import Guarantee, guarantee, largest_tolerance
    from keyhole.learners.tolerance.learner import Tolerant
    from keyhole.learners.verifying.saved_model import Verification, verify
    from keyhole.learners.vocabulary.learner import Restricted
    from keyhole.models.attention import Factored, Head, MultiHead, SelfAttention
    from keyhole.models.baselines import Mlp, Recurrent
    from keyhole.models.linear import LinearAttention
    from keyhole.models.numbers import FixedPoint, NumberFormat, evaluate, number_format
    from keyhole.models.relu import AbsAffine, ReluNet
    from keyhole.models.stack import Block, TokenMap, Transformer
    from keyhole.models.tensor import TensorAttention
    from keyhole.models.tensor_fast import Blank, in_pairs, on_circle, pairwise_sum, shift_invariant
    from keyhole.models.torch_layout import TorchLayout, torch_multihead
    from keyhole.models.transformer import OneLayer
    from keyhole.oracles.base import Imperfection, Ledger, Oracle
    from keyhole.oracles.http.service import HttpService
    from keyhole.oracles.local import Local
    from keyhole.oracles.onnx_file import OnnxFile
    from keyhole.oracles.torch_module import TorchModule, torch_weights
    from keyhole.oracles.torch_parts import torch_block, torch_head, torch_layer
    from keyhole.oracles.transcript import Recorded
    from keyhole.oracles.wrappers import (
        Bounded,
        Budgeted,
        Cast,
        Chunked,
        Counted,
        Declared,
        Disturbed,
        Noisy,
        Rounded,
        Signs,
        Watched,
    )
    from keyhole.tasks import (
        FourCycles,
        Match2,
        Match3,
        Match3Bigram,
        Match3Local,
        Match4,
        SparseAverage,
        Task,
        Triangles,
        task_named,
    )

__version__ = "0.1.0"

_HOME = {
    "keyhole.claims": ("Certificate", "Check", "Outcome", "THEOREMS", "Theorem", "Verdict"),
    "keyhole.bounds.attacks": ("Attack", "Attacked", "attack"),
    "keyhole.bounds.channel": ("sign_channel",),
    "keyhole.bounds.disjointness": ("Reduction", "reduction"),
    "keyhole.bounds.formulas": ("Inequality",),
    "keyhole.bounds.protocol": ("Conversation", "EffectiveBits", "converse", "effective_bits"),
    "keyhole.bounds.verdicts": ("Bound", "BoundVerdict", "Gap", "bound", "bound_network"),
    "keyhole.constructions": ("Built", "Checked", "Construction", "Size", "build", "load", "save"),
    "keyhole.errors": (
        "BadAnswer",
        "BudgetSpent",
        "DifferentRun",
        "DoesNotFit",
        "InvalidInput",
        "KeyholeError",
        "OracleError",
        "RecoveryFailed",
        "TargetFailed",
    ),
    "keyhole.identify": ("Distance", "Symmetry", "Twin", "canonical", "freedom", "twins"),
    "keyhole.lab.onnx.export": ("export_onnx",),
    "keyhole.learners.one_layer.antisymmetric": ("Antisymmetric",),
    "keyhole.learners.choosing": ("learn",),
    "keyhole.learners.registry": ("Hints",),
    "keyhole.learners.casts.learner": ("Balanced",),
    "keyhole.learners.base": ("Counterexample", "Fresh", "Plan", "Recovery", "Status"),
    "keyhole.learners.verifying.saved_model": ("Verification", "verify"),
    "keyhole.learners.one_head.exact": ("Exact",),
    "keyhole.learners.one_head.grid": ("Grid",),
    "keyhole.learners.tolerance.guarantees": ("Guarantee", "guarantee", "largest_tolerance"),
    "keyhole.learners.labels.learner": ("Labels",),
    "keyhole.learners.layer.learner": ("WholeLayer",),
    "keyhole.learners.one_head.low_rank": ("LowRank",),
    "keyhole.learners.network_in_ball.learner": ("NetworkInBall",),
    "keyhole.learners.networks.learner": ("Network",),
    "keyhole.learners.noise.learner": ("UnderNoise",),
    "keyhole.learners.network_under_noise.learner": ("NetworkUnderNoise",),
    "keyhole.learners.one_head.nuclear": ("NuclearNorm",),
    "keyhole.learners.one_head.nystrom": ("Nystrom",),
    "keyhole.learners.one_layer.learner": ("OneLayerTransformer",),
    "keyhole.learners.published.orthogonal": ("Orthogonal",),
    "keyhole.learners.heads_in_ball.learner": ("HeadsInBall",),
    "keyhole.learners.published.repetition": ("Repetition",),
    "keyhole.learners.vocabulary.learner": ("Restricted",),
    "keyhole.learners.several_heads.learner": ("SeveralHeads",),
    "keyhole.learners.smooth_network.learner": ("SmoothNetwork",),
    "keyhole.learners.tolerance.learner": ("Tolerant",),
    "keyhole.models.attention": ("Factored", "Head", "MultiHead", "SelfAttention"),
    "keyhole.models.baselines": ("Mlp", "Recurrent"),
    "keyhole.models.linear": ("LinearAttention",),
    "keyhole.models.numbers": ("FixedPoint", "NumberFormat", "evaluate", "number_format"),
    "keyhole.models.relu": ("AbsAffine", "ReluNet"),
    "keyhole.models.stack": ("Block", "TokenMap", "Transformer"),
    "keyhole.models.tensor": ("TensorAttention",),
    "keyhole.models.tensor_fast": (
        "Blank",
        "in_pairs",
        "on_circle",
        "pairwise_sum",
        "shift_invariant",
    ),
    "keyhole.models.torch_layout": ("TorchLayout", "torch_multihead"),
    "keyhole.models.transformer": ("OneLayer",),
    "keyhole.oracles.base": ("Imperfection", "Ledger", "Oracle"),
    "keyhole.oracles.http.service": ("HttpService",),
    "keyhole.oracles.local": ("Local",),
    "keyhole.oracles.onnx_file": ("OnnxFile",),
    "keyhole.oracles.torch_module": ("TorchModule", "torch_weights"),
    "keyhole.oracles.torch_parts": ("torch_block", "torch_head", "torch_layer"),
    "keyhole.oracles.transcript": ("Recorded",),
    "keyhole.oracles.wrappers": (
        "Bounded",
        "Budgeted",
        "Cast",
        "Chunked",
        "Counted",
        "Declared",
        "Disturbed",
        "Noisy",
        "Rounded",
        "Signs",
        "Watched",
    ),
    "keyhole.tasks": (
        "FourCycles",
        "Match2",
        "Match3",
        "Match3Bigram",
        "Match3Local",
        "Match4",
        "SparseAverage",
        "Task",
        "Triangles",
        "task_named",
    ),
}
_WHERE = {name: (module, name) for module, names in _HOME.items() for name in names}
_WHERE["compare"] = ("keyhole.identify", "distance")

__all__ = [  # noqa: RUF022
    "AbsAffine",
    "Antisymmetric",
    "Attack",
    "Attacked",
    "BadAnswer",
    "Balanced",
    "Blank",
    "Block",
    "Bound",
    "BoundVerdict",
    "Bounded",
    "BudgetSpent",
    "Budgeted",
    "Built",
    "Cast",
    "Certificate",
    "Check",
    "Checked",
    "Chunked",
    "Construction",
    "Conversation",
    "Counted",
    "Counterexample",
    "Declared",
    "DifferentRun",
    "Distance",
    "Disturbed",
    "DoesNotFit",
    "EffectiveBits",
    "Exact",
    "Factored",
    "FixedPoint",
    "FourCycles",
    "Fresh",
    "Gap",
    "Grid",
    "Guarantee",
    "Head",
    "HeadsInBall",
    "Hints",
    "HttpService",
    "Imperfection",
    "Inequality",
    "InvalidInput",
    "KeyholeError",
    "Labels",
    "Ledger",
    "LinearAttention",
    "Local",
    "LowRank",
    "Match2",
    "Match3",
    "Match3Bigram",
    "Match3Local",
    "Match4",
    "Mlp",
    "MultiHead",
    "Network",
    "NetworkInBall",
    "NetworkUnderNoise",
    "Noisy",
    "NuclearNorm",
    "NumberFormat",
    "Nystrom",
    "OneLayer",
    "OneLayerTransformer",
    "OnnxFile",
    "Oracle",
    "OracleError",
    "Orthogonal",
    "Outcome",
    "Plan",
    "Recorded",
    "Recovery",
    "RecoveryFailed",
    "Recurrent",
    "Reduction",
    "ReluNet",
    "Repetition",
    "Restricted",
    "Rounded",
    "SelfAttention",
    "SeveralHeads",
    "Signs",
    "Size",
    "SmoothNetwork",
    "SparseAverage",
    "Status",
    "Symmetry",
    "THEOREMS",
    "TargetFailed",
    "Task",
    "TensorAttention",
    "Theorem",
    "TokenMap",
    "Tolerant",
    "TorchLayout",
    "TorchModule",
    "Transformer",
    "Triangles",
    "Twin",
    "UnderNoise",
    "Verdict",
    "Verification",
    "Watched",
    "WholeLayer",
    "attack",
    "bound",
    "bound_network",
    "build",
    "canonical",
    "compare",
    "converse",
    "effective_bits",
    "evaluate",
    "export_onnx",
    "freedom",
    "guarantee",
    "in_pairs",
    "largest_tolerance",
    "learn",
    "load",
    "number_format",
    "on_circle",
    "pairwise_sum",
    "reduction",
    "save",
    "shift_invariant",
    "sign_channel",
    "task_named",
    "torch_block",
    "torch_head",
    "torch_layer",
    "torch_multihead",
    "torch_weights",
    "twins",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'keyhole' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    value = globals()[name] = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return __all__
