"""Shared by every test: shape checks, a seeded generator, the hypothesis profile, and the command
line run as a person does: another process, a directory of its own.
"""

import functools
import importlib.util
import inspect
import shutil
import signal
from collections import Counter, defaultdict

import jaxtyping
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import config

# Asserts of shared helpers show their values as those of tests do.
pytest.register_assert_rewrite("support")

settings.register_profile(
    "keyhole", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("keyhole")

# A job in the background of a shell is started deaf to Ctrl-C, and so is what tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

FIRST, EVERY = 3, 1000  # calls of a function whose shapes are checked
ALIKE = 3  # checks that calls of the same types and shapes have passed, after which they are spared
check_every_call = jaxtyping.jaxtyped


class Tally:
    """Calls in this test, and what passed in any test; functions made anew each time share one."""

    def __init__(self):
        self.calls = 0
        self.passed = Counter()


tallies = defaultdict(Tally)
counted: list[Tally] = []


def spare_calls(function, check):
    """A function whose shapes are checked in its first three calls in a test, and in every
    thousandth after that.

    Among the first, calls are spared whose like has passed three times in any tests.
    """
    tally = tallies[function.__module__, function.__qualname__, function.__code__]
    # Writing a check takes longer than most tests of functions, and most need none.
    checked = functools.cache(lambda: check(function))

    @functools.wraps(function)
    def call(*args, **options):
        __tracebackhide__ = True
        tally.calls += 1
        if tally.calls > FIRST and tally.calls % EVERY:
            return function(*args, **options)
        if tally.calls == 1:
            counted.append(tally)
        shapes = *map(describe_shape, args), *options, *map(describe_shape, options.values())
        if tally.calls <= FIRST and tally.passed[shapes] >= ALIKE:
            return function(*args, **options)
        answer = checked()(*args, **options)
        tally.passed[shapes] += 1
        return answer

    return call


def describe_shape(value):
    """What decides whether a value passes a check: the type, and the shape or the parts."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape
    if isinstance(value, tuple):
        return tuple, *map(describe_shape, value)
    if isinstance(value, list):
        return list, frozenset(map(describe_shape, value))
    return type(value)


def check_some_calls(**how):
    """As `jaxtyping.jaxtyped`: checking a million calls of small functions took four fifths of the
    theorem tests.
    """
    check = check_every_call(**how)

    def decorate(found):
        if not inspect.isclass(found):
            return spare_calls(found, check)
        plain = found.__init__
        check(found)
        ready = found.__init__
        if ready is not plain:
            found.__init__ = spare_calls(plain, lambda _: ready)
        return found

    return decorate


# The import hook of jaxtyping looks the decorator up in each module it loads, and none is loaded
# yet.
jaxtyping.jaxtyped = check_some_calls


def count_calls_anew():
    for tally in counted:
        tally.calls = 0
    counted.clear()


@pytest.fixture(autouse=True)
def _every_test_counts_its_own_calls():
    count_calls_anew()


@pytest.fixture
def rng():
    return np.random.default_rng(20260101)


@pytest.fixture
def untyped():
    """Shape annotations are not enforced, as outside a test run: what is refused is refused by the
    code itself.
    """
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def commands():
    """`commands(directory, "learn", ...)`: a finished command, forked from a process that has done
    the imports.
    """
    from support.prefork import Preforked

    parent = Preforked()
    yield parent
    parent.close()


@pytest.fixture(scope="session")
def torch_commands():
    """The same, with torch imported, which takes longer than what commands do with it."""
    from support.prefork import Preforked

    parent = Preforked("torch")
    yield parent
    parent.close()


@pytest.fixture
def keyhole(commands, tmp_path):
    """`keyhole("learn", ...)` in tmp_path."""
    return functools.partial(commands, tmp_path)


@pytest.fixture
def targets(tmp_path):
    """The module `targets`, a copy of which lies beside the command."""
    from support.paths import TARGETS

    shutil.copy(TARGETS, tmp_path)
    spec = importlib.util.spec_from_file_location("targets_here", tmp_path / "targets.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def head(tmp_path, rng):
    """A head, saved beside the command as head.safetensors."""
    from keyhole.models import Head, save

    model = Head.random(4, rng=rng)
    save(model, tmp_path / "head.safetensors")
    return model


@pytest.fixture
def asked(tmp_path):
    """`asked()` is how many sequences the targets that keep a log were asked."""
    log = tmp_path / "asked.log"
    return lambda: sum(map(int, log.read_text().split())) if log.exists() else 0
