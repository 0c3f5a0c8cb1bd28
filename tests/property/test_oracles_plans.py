"""Plans, tapes and compiled loops say what the definitions say, for systems that nobody has thought of."""

import copy
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_oodkit.core.errors import ShapeError
from rl_oodkit.oracles.factors import ConstantMap, cholesky_rows
from rl_oodkit.oracles.plans import Chain, Inputs, Waves, terms_of
from rl_oodkit.oracles.problem import QuadraticForm, QuadraticProblem, UniformStart
from rl_oodkit.oracles.quadratic import Converse
from rl_oodkit.oracles.tape import Program, Tape
from rl_oodkit.oracles.terms import ARGUMENTS, FUNCTIONS, Entry, Givens, Term, gain_values, rotate

N = 5
places = st.integers(0, N - 1)
coefs = st.floats(-1.5, 1.5)
terms = st.builds(
    Term,
    coef=coefs,
    function=st.sampled_from(sorted(FUNCTIONS)),
    kind=st.sampled_from(sorted(ARGUMENTS)),
    i=places,
    j=places,
    scale=st.sampled_from([1.0, 0.5, 2.0, 0.0]),
)
planes = st.tuples(places, places).filter(lambda plane: plane[0] != plane[1])
rotations = st.builds(
    lambda plane, angle: Givens(*plane, tuple(angle)), planes, st.lists(terms, min_size=1, max_size=3)
)
chains = st.lists(rotations, max_size=6)
factors = st.lists(st.tuples(st.sampled_from(sorted(FUNCTIONS)), places), max_size=3).map(tuple)
entries = st.lists(st.builds(Entry, places, st.integers(0, 1), coefs, factors), min_size=1, max_size=6)


def states(worlds, seed=0):
    """Return reproducible states of shape (5, worlds)."""
    return 2 * np.random.default_rng(seed).normal(size=(N, worlds))


@settings(max_examples=60, deadline=None)
@given(chains, entries)
def test_a_plan_is_its_definition(chain, inputs):
    """Rotations and inputs to rounding, lengths kept, and one world as in company."""
    waves = Waves([t for g in chain for t in g.terms] + terms_of(inputs), np.float64)
    plan, gain = Chain(chain, waves, np.float64), Inputs(inputs, waves, np.float64)
    s, x, tape = states(9), states(9, 1), Tape(9, np.float64)
    z = waves(tape, s)
    turned, values = plan(tape, z, x.copy()), gain(tape, z)
    assert np.allclose(turned, rotate(chain, s, x), rtol=0, atol=1e-12)
    for k, (place, value) in enumerate(gain_values(inputs, s).items()):
        assert gain.places[k] == place and np.allclose(values[k], value, rtol=1e-12, atol=1e-12)
    tape = Tape(1, np.float64)
    assert np.array_equal(plan(tape, waves(tape, s[:, [4]]), x[:, [4]].copy()), turned[:, [4]])


@settings(max_examples=25, deadline=None)
@given(chains, entries.filter(lambda found: any(e.coef for e in found)), st.floats(0.1, 1.0), st.booleans())
def test_bellman_holds_for_any_plan_and_the_loops_agree(chain, inputs, p, steady):
    """The drift of a random system solves Bellman's equation, and the compiled step is the program's."""
    half = states(N, 2)
    P = half @ half.T + np.eye(N)
    swirl = np.linalg.qr(half)[0] if steady else tuple(chain)
    model = Converse(P=P, Q=0.1 * P, R=np.diag([1.0, 2.0]), gain=tuple(inputs), swirl=swirl, p=p)
    start = UniformStart((-1.0,) * N, (1.0,) * N)
    problem = QuadraticProblem(model, 10, 1e3, {"train": start, "test": start})
    s, form = states(6, 3), lambda M, x: np.einsum("ib,ij,jb->b", x, M, x)
    a, quiet = model.action(s), np.zeros((0, 6))
    ahead = model.discount * form(P, problem.step(s, a, quiet))
    assert np.allclose(problem.cost(s, a) + ahead, form(P, s), rtol=1e-10)
    pytest.importorskip("numba", reason="the compiled step needs the extra `fast`")
    after, cost = problem.scalar_step(s[:, 2].copy(), a[:, 2].copy(), np.zeros(0))
    assert np.allclose(after, problem.step(s, a, quiet)[:, 2], rtol=0, atol=1e-12 * np.abs(s).max())
    assert np.isclose(cost, problem.cost(s, a)[2], rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 10**6))
def test_constant_maps_and_forms_are_products(rows, columns, seed):
    """Sparse, banded, empty: as the library's product."""
    rng = np.random.default_rng(seed)
    M = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < rng.random())
    x = rng.normal(size=(columns, 4))
    assert np.allclose(ConstantMap(M)(x), M @ x, rtol=0, atol=1e-12)
    square = M.T @ M
    assert np.allclose(QuadraticForm(square)(x), np.einsum("ib,ij,jb->b", x, square, x), rtol=0, atol=1e-11)


def test_both_orders_of_the_factor_give_the_same_bits():
    """Few worlds subtract at once, many when the column is due."""
    half = np.random.default_rng(0).normal(size=(6, 6, 1000))
    a = np.einsum("ijb,kjb->ikb", half, half) + np.eye(6)[:, :, None]
    lower = np.tril(np.ones((6, 6), bool))
    many, few = cholesky_rows(a.copy()), cholesky_rows(a[:, :, :10].copy())
    assert np.array_equal(many[lower][:, :10], few[lower])


def test_a_program_refuses_other_shapes():
    """A missing row, and two numbers of worlds; one column stands for all."""

    def added(tape, x, y):
        total = tape.rows(2)
        tape.do(np.add, x, y, total)
        return (total,)

    program = Program(added, [2, 2], np.float64)
    x = np.ones((2, 6))
    assert np.array_equal(program(x, np.ones((2, 1)))[0], x + 1)
    for other in (np.ones((1, 6)), np.ones((2, 5))):
        with pytest.raises(ShapeError):
            program(x, other)
    assert np.array_equal(copy.deepcopy(program)(x, x)[0], 2 * x)


ALONE = """
import sys
sys.modules["numba"] = None
import numpy as np
from rl_oodkit.envs.single import CertifiedEnv
from rl_oodkit.oracles.kernel import ScalarStep, is_compilable
env = CertifiedEnv("rl_oodkit/Arm-v1", links=2)
problem = env.plant.problem
assert problem.scalar_step is None and not is_compilable(problem)
env.reset(seed=1)
assert np.isfinite(env.step(np.zeros(2))[1])
s, a, w = np.linspace(-1, 1, 4), np.ones(2), np.zeros(2)
state, cost = ScalarStep(problem)(s, a, w)
assert np.allclose(state, problem.step(s[:, None], a[:, None], w[:, None])[:, 0], rtol=0, atol=1e-13)
assert np.isclose(cost, problem.cost(s[:, None], a[:, None])[0])
"""


def test_without_the_compiler_everything_works():
    """The environment falls back to the program; the loops run as plain Python and agree."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
