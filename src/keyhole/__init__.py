"""keyhole: what an attention layer can compute, and what its answers give away.

Names are loaded when first used, so that importing the package is quick and pulls in nothing optional.
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
    from keyhole.lab.onnx_export import export_onnx
    from keyhole.learners.antisymmetric import Antisymmetric
    from keyhole.learners.auto import Hints, learn
    from keyhole.learners.balance import Balanced
    from keyhole.learners.base import Counterexample, Fresh, Plan, Recovery, Status
    from keyhole.learners.bounded_network import NetworkInBall
    from keyhole.learners.checking import Verification, verify
    from keyhole.learners.exact import Exact
    from keyhole.learners.grid import Grid
    from keyhole.learners.guarantees import Guarantee, guarantee, largest_tolerance
    from keyhole.learners.label import Labels
    from keyhole.learners.layer import WholeLayer
    from keyhole.learners.low_rank import LowRank
    from keyhole.learners.network import Network
    from keyhole.learners.noisy import UnderNoise
    from keyhole.learners.noisy_network import NetworkUnderNoise
    from keyhole.learners.nuclear import NuclearNorm
    from keyhole.learners.nystrom import Nystrom
    from keyhole.learners.one_layer import OneLayerTransformer
    from keyhole.learners.orthogonal import Orthogonal
    from keyhole.learners.pencil import HeadsInBall
    from keyhole.learners.repetition import Repetition
    from keyhole.learners.restricted import Restricted
    from keyhole.learners.several_heads import SeveralHeads
    from keyhole.learners.smooth import SmoothNetwork
    from keyhole.learners.tolerant import Tolerant
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
    from keyhole.oracles.http_service import HttpService
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
    "keyhole.lab.onnx_export": ("export_onnx",),
    "keyhole.learners.antisymmetric": ("Antisymmetric",),
    "keyhole.learners.auto": ("Hints", "learn"),
    "keyhole.learners.balance": ("Balanced",),
    "keyhole.learners.base": ("Counterexample", "Fresh", "Plan", "Recovery", "Status"),
    "keyhole.learners.checking": ("Verification", "verify"),
    "keyhole.learners.exact": ("Exact",),
    "keyhole.learners.grid": ("Grid",),
    "keyhole.learners.guarantees": ("Guarantee", "guarantee", "largest_tolerance"),
    "keyhole.learners.label": ("Labels",),
    "keyhole.learners.layer": ("WholeLayer",),
    "keyhole.learners.low_rank": ("LowRank",),
    "keyhole.learners.bounded_network": ("NetworkInBall",),
    "keyhole.learners.network": ("Network",),
    "keyhole.learners.noisy": ("UnderNoise",),
    "keyhole.learners.noisy_network": ("NetworkUnderNoise",),
    "keyhole.learners.nuclear": ("NuclearNorm",),
    "keyhole.learners.nystrom": ("Nystrom",),
    "keyhole.learners.one_layer": ("OneLayerTransformer",),
    "keyhole.learners.orthogonal": ("Orthogonal",),
    "keyhole.learners.pencil": ("HeadsInBall",),
    "keyhole.learners.repetition": ("Repetition",),
    "keyhole.learners.restricted": ("Restricted",),
    "keyhole.learners.several_heads": ("SeveralHeads",),
    "keyhole.learners.smooth": ("SmoothNetwork",),
    "keyhole.learners.tolerant": ("Tolerant",),
    "keyhole.models.attention": ("Factored", "Head", "MultiHead", "SelfAttention"),
    "keyhole.models.baselines": ("Mlp", "Recurrent"),
    "keyhole.models.linear": ("LinearAttention",),
    "keyhole.models.numbers": ("FixedPoint", "NumberFormat", "evaluate", "number_format"),
    "keyhole.models.relu": ("AbsAffine", "ReluNet"),
    "keyhole.models.stack": ("Block", "TokenMap", "Transformer"),
    "keyhole.models.tensor": ("TensorAttention",),
    "keyhole.models.tensor_fast": ("Blank", "in_pairs", "on_circle", "pairwise_sum", "shift_invariant"),
    "keyhole.models.torch_layout": ("TorchLayout", "torch_multihead"),
    "keyhole.models.transformer": ("OneLayer",),
    "keyhole.oracles.base": ("Imperfection", "Ledger", "Oracle"),
    "keyhole.oracles.http_service": ("HttpService",),
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
