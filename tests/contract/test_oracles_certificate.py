"""The certificate passes what is optimal, and refuses each kind of wrong optimum for the reason it is wrong."""

import copy
import json
import os
from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import lfilter

from rl_oodkit import cli
from rl_oodkit.core import registry
from rl_oodkit.core.errors import DamagedFileError, ForeignFileError, ParameterError
from rl_oodkit.oracles.certificate import Certificate, certify, code_digest, load_certificates
from rl_oodkit.oracles.checks import check_minimum, domain_states
from rl_oodkit.oracles.fixture import Fixture, Oracle, QuadraticOracle
from rl_oodkit.oracles.linearisation import check_riccati, linearise
from rl_oodkit.oracles.problem import NormalStart, Problem, QuadraticProblem
from rl_oodkit.oracles.riccati import discounted_dare
from rl_oodkit.oracles.toys import ToySpec, small_fixture

SHORT = {"states": 200, "draws": 40_000, "worlds": 60}
ROWS = ["C1", "C2", "C3", "C4", "C5", "C5 conditional", "C6", "C7", "C8", "C8 perturbed", "C9", "C10", "G1", "G2"]


def verdicts(certificate) -> dict[str, str]:
    """Map the names of the checks to their verdicts."""
    return {row.name: row.verdict for row in certificate.rows}


def with_problem(fixture, problem, *, oracle=None) -> Fixture:
    """Return a fixture whose problem is another, and whose oracle does not know."""
    return Fixture("test/Wrong-v1", fixture.spec, problem, oracle or fixture.oracle)


@pytest.fixture(scope="module")
def toy():
    """The nonlinear toy."""
    return small_fixture()


@pytest.fixture(scope="module")
def issued(toy):
    """Its certificate."""
    return certify(toy, **SHORT)


def test_a_true_optimum_passes_every_check(issued):
    """All rows are there, none is left out, none failed."""
    assert [row.name for row in issued.rows] == ROWS
    assert set(verdicts(issued).values()) == {"passed"} and issued.passed and not issued.failures
    value = {row.name: row.value for row in issued.rows}
    assert max(value[name] for name in ("C1", "C2", "C4")) < 1e-12 and value["C3"] < 1e-9
    assert value["C9"] == 0 and value["C6"] == pytest.approx(0.1)


def test_a_certificate_is_reproducible(toy, issued):
    """The same seed gives the same record, to the last digit."""
    assert certify(toy, **SHORT) == issued


def test_the_oracle_loses_exactly_nothing_and_spoilt_policies_lose(issued):
    """The table has the oracle at zero and every other policy above it."""
    gaps = {row["policy"]: row["gap"] for row in issued.perturbations}
    assert gaps.pop("oracle") == 0.0
    assert min(gaps.values()) > 0 and gaps["gain 1.02"] < gaps["gain 1.1"] < gaps["gain 1.3"]


# -- wrong optima ---------------------------------------------------------------------------------------------------


def test_no_state_cost_is_refused_by_coercivity_although_the_residual_is_zero(toy):
    """With Q = 0 the Bellman equation holds and doing nothing is free: only coercivity tells."""
    model = replace(toy.problem.model, Q=np.zeros((2, 2)))
    problem = QuadraticProblem(model, 120, 4.0, toy.problem.starts)
    found = verdicts(certify(with_problem(toy, problem, oracle=QuadraticOracle(problem)), **SHORT))
    assert found["C6"] == "failed"
    assert [found[name] for name in ("C1", "C2", "C3", "C4", "C5")] == ["passed"] * 5


class Altered:
    """A problem of which one part is replaced."""

    def __init__(self, problem):
        self.inner = problem

    def __getattr__(self, name):
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def advance(self, s, a, w):
        """Step and charge as altered."""
        return self.step(s, a, w), self.cost(s, a)

    def with_start(self, name):
        """Keep the alteration."""
        other = copy.copy(self)
        other.inner = self.inner.with_start(name)
        return other


class Biased(Altered):
    """Noise with a mean."""

    def noise(self, rng, steps):
        """Return shifted noise."""
        return self.inner.noise(rng, steps) + 0.02


class WrongVariance(Altered):
    """A variance that was taken for a standard deviation."""

    def noise(self, rng, steps):
        """Return noise that is too small."""
        return self.inner.noise(rng, steps) * 0.05


class Coloured(Altered):
    """Autoregressive noise with the declared variance."""

    def noise(self, rng, steps):
        """Return a stationary autoregression."""
        w = self.inner.noise(rng, steps)
        w[:, 1:] *= np.sqrt(0.19)
        return lfilter([1.0], [1.0, -0.9], w, axis=1)


@pytest.mark.parametrize("wrong", [Biased, WrongVariance])
def test_wrong_noise_is_refused_by_the_simulator(toy, wrong):
    """Everything that takes the expectation from the oracle passes; the simulator's own draws do not."""
    found = verdicts(certify(with_problem(toy, wrong(toy.problem)), **SHORT))
    assert found["C5"] == "failed" and found["C5 conditional"] == "passed"
    assert [found[name] for name in ("C1", "C2", "C3", "C4", "C6")] == ["passed"] * 5


def test_coloured_noise_is_refused_given_the_past(toy):
    """Its marginal law is the declared one, so that the average passes."""
    found = verdicts(certify(with_problem(toy, Coloured(toy.problem)), **SHORT))
    assert found["C5 conditional"] == "failed" and found["C5"] == "passed"


def test_a_clipped_optimum_is_refused_by_the_clip_gate():
    """A box that the optimal action leaves."""
    found = certify(small_fixture(action_bound=0.3), **SHORT)
    assert verdicts(found)["C9"] == "failed"
    assert next(row.value for row in found.rows if row.name == "C9") > 0


def test_an_oracle_that_clips_itself_is_refused_too():
    """Touching the box counts."""
    tight = small_fixture(action_bound=0.3)

    class Clipping(QuadraticOracle):
        """Return actions inside the box."""

        def action(self, s):
            """Clip."""
            return self.problem.clip(super().action(s))

    found = certify(with_problem(tight, tight.problem, oracle=Clipping(tight.problem)), **SHORT)
    assert verdicts(found)["C9"] == "failed"


def test_an_authority_that_the_step_leaves_out_is_refused(toy):
    """The mistake of training with one input matrix and evaluating with another."""
    found = verdicts(certify(with_problem(toy, small_fixture(authority=1.0).problem), **SHORT))
    assert found["C1"] == found["C2"] == found["C3"] == found["C4"] == found["C5"] == "failed"
    assert found["C6"] == "passed"


def test_a_problem_not_worth_solving_is_not_released():
    """Where action is dear, doing nothing is nearly optimal."""
    found = certify(small_fixture(action_cost=30.0), **SHORT)
    assert found.failures == ("G1",)


def test_a_diverging_idle_policy_is_said_to_diverge():
    """The gate passes, and the row names the divergence."""
    found = certify(small_fixture(action_cost=0.15, action_bound=8.0), **SHORT)
    rows = {row.name: row for row in found.rows}
    assert found.passed and "diverges" in rows["G1"].detail and rows["G2"].verdict == "noted"


def test_a_check_that_raises_is_a_failure_with_a_reason(toy):
    """A broken oracle does not hide the other checks."""

    class Broken(QuadraticOracle):
        """Forget how to compute an advantage."""

        def advantage(self, s, a):
            """Raise."""
            raise ValueError("no advantage today")

    found = certify(with_problem(toy, toy.problem, oracle=Broken(toy.problem)), **SHORT)
    row = next(row for row in found.rows if row.name == "C4")
    assert row.verdict == "failed" and "no advantage today" in row.detail and verdicts(found)["C1"] == "passed"


# -- memory, and values that are not quadratic ----------------------------------------------------------------------


class Hidden(Altered):
    """Coloured noise whose memory is part of the state: rows 2 and 3."""

    n, memory, rho, std = 4, (2, 3), 0.8, 0.05

    def initial(self, rng, worlds):
        """Draw the memory from its stationary law."""
        return np.vstack([self.inner.initial(rng, worlds), self.std * rng.standard_normal((worlds, 2)).T])

    def step(self, s, a, w):
        """Let the memory drive the state."""
        z = self.rho * s[2:] + np.sqrt(1 - self.rho**2) * w
        return np.vstack([self.inner.step(s[:2], a, z), z])

    def cost(self, s, a):
        """Charge the physical state."""
        return self.inner.cost(s[:2], a)


class Ignorant(Oracle):
    """Take the coloured noise for white."""

    def __init__(self, problem, inner):
        super().__init__(problem)
        self.inner, self.offset = inner, inner.offset

    def value(self, s):
        """Ignore the memory."""
        return self.inner.value(s[:2])

    def action(self, s):
        """Ignore the memory."""
        return self.inner.action(s[:2])

    def expected_value(self, z):
        """Ignore the memory."""
        return self.inner.expected_value(z[:2])

    def advantage(self, s, a):
        """Ignore the memory."""
        return self.inner.advantage(s[:2], a)


def test_a_hidden_memory_is_refused_with_the_memory_held(toy):
    """Averaged over the memory the equation holds; for a given memory it does not."""
    problem = Hidden(toy.problem)
    found = verdicts(certify(with_problem(toy, problem, oracle=Ignorant(problem, toy.oracle)), **SHORT))
    assert found["C5"] == "passed" and found["C5 conditional"] == "failed"


class Augmented(Problem):
    """One state driven by an autoregression that is part of the state, with a cost that makes a known value optimal.

    V = s^2 + T z^2 + b, s' = k s + d z + a + w, z' = r z + v, and the state cost is V minus the optimal cost after it.
    """

    n, m, q, discount, horizon, memory = 2, 1, 2, 0.9, 80, (1,)
    action_low, action_high = np.array([-6.0]), np.array([6.0])
    state_names, action_names = ("s", "z"), ("a",)
    r, d, T, sw, sv = 0.5, 0.3, 0.35, 0.1, 0.2
    H = 0.9 / (1 + 0.9)
    k = float(np.sqrt(0.5 / H))

    def __init__(self):
        std = self.sv / np.sqrt(1 - self.r**2)
        self.starts = {"train": NormalStart((0.0, 0.0), (1.0, std)), "test": NormalStart((1.0, 0.0), (0.2, std))}

    def noise(self, rng, steps):
        """Draw both noises."""
        return np.array([[self.sw], [self.sv]]) * rng.standard_normal((steps, 2)).T

    def step(self, s, a, w):
        """Move."""
        return np.vstack([self.k * s[0] + self.d * s[1] + self.clip(a)[0] + w[0], self.r * s[1] + w[1]])

    def cost(self, s, a):
        """Charge what the value requires."""
        y = self.k * s[0] + self.d * s[1]
        kept = s[0] ** 2 + self.T * s[1] ** 2 - self.H * y**2 - self.discount * self.T * (self.r * s[1]) ** 2
        return kept + self.clip(a)[0] ** 2


class AugmentedOracle(Oracle):
    """Know it."""

    @property
    def offset(self):
        """Return the noise floor."""
        p = self.problem
        return p.discount / (1 - p.discount) * (p.sw**2 + p.T * p.sv**2)

    def value(self, s):
        """Return V."""
        return s[0] ** 2 + self.problem.T * s[1] ** 2 + self.offset

    def action(self, s):
        """Feed the memory forward."""
        return -0.9 / 1.9 * (self.problem.k * s[:1] + self.problem.d * s[1:])

    def expected_value(self, z):
        """Return the mean of V."""
        p = self.problem
        return self.value(z) + p.sw**2 + p.T * p.sv**2

    def advantage(self, s, a):
        """Return the curvature's square."""
        return 1.9 * (self.problem.clip(a) - self.action(s))[0] ** 2


def test_an_augmented_memory_passes_and_says_what_does_not_apply():
    """The certified remedy for coloured noise: an oracle without matrices, a memory in the state."""
    problem = Augmented()
    fixture = Fixture("test/Augmented-v1", ToySpec(), problem, AugmentedOracle(problem))
    found = certify(fixture, **SHORT)
    rows = {row.name: row for row in found.rows}
    assert found.passed, [str(row) for row in found.rows]
    assert rows["C2"].verdict == rows["C10"].verdict == "not applicable" and rows["C2"].detail
    assert rows["C6"].value >= 0.3 and "memory" in rows["C5 conditional"].detail


# -- single checks --------------------------------------------------------------------------------------------------


def test_the_linear_problem_agrees_with_riccati_to_twelve_digits():
    """And the matrices come from the simulator alone."""
    linear = small_fixture(nonlinear=False)
    assert check_riccati(linear).value < 1e-12
    found, model = linearise(linear), linear.problem.model
    assert found.linear and np.allclose(found.Q, model.Q, atol=1e-12) and np.allclose(found.R, model.R, atol=1e-12)
    P, _ = discounted_dare(found.A, found.B / model.p, found.Q, found.R, model.discount)
    assert np.abs(P - model.P).max() > 0.05


def test_a_step_without_linearisation_is_not_applicable(toy):
    """A kick by the sign of the position."""

    class Kicked(Altered):
        """Add a kick proportional to the size of the state and the sign of its position."""

        def step(self, s, a, w):
            """Kick."""
            return self.inner.step(s, a, w) + 0.3 * np.sign(s[0]) * np.abs(s[1])

    assert check_riccati(with_problem(toy, Kicked(toy.problem))).verdict == "not applicable"


def test_the_minimiser_finds_a_wrong_action(toy):
    """An action that is off by a hundredth is a failed check."""

    class Off(QuadraticOracle):
        """Add a hundredth."""

        def action(self, s):
            """Return the wrong action."""
            return super().action(s) + 0.01

    wrong = with_problem(toy, toy.problem, oracle=Off(toy.problem))
    assert check_minimum(wrong, domain_states(toy, 20)).verdict == "failed"


def test_the_domain_covers_both_starts_and_rollouts(toy):
    """Half of the states are starts, from the wide and the narrow law; half have been walked to."""
    states = domain_states(toy, 400)
    assert states.shape == (2, 400) and np.isfinite(states).all()
    reach = np.abs(states).max(axis=0)
    assert (reach > 1).mean() > 0.1 and (reach < 0.2).mean() > 0.1


# -- the record -----------------------------------------------------------------------------------------------------


def test_the_record_survives_json(issued):
    """Text, and back."""
    again = Certificate.from_json(issued.to_json())
    assert again == issued and again.frame().equals(issued.frame()) and len(issued.frame()) == len(ROWS)


def test_infinities_survive_json(issued):
    """JSON has none, the record does."""
    row = replace(issued.rows[0], value=float("inf"), threshold=float("-inf"))
    again = Certificate.from_json(replace(issued, rows=(row,)).to_json())
    assert again.rows[0] == row
    json.loads(replace(issued, rows=(row,)).to_json(), parse_constant=lambda name: pytest.fail(name))


def test_the_record_names_parameters_and_code(toy, issued):
    """Other parameters, another digest; the same code, the same digest."""
    other = small_fixture(noise_std=0.06)
    assert issued.digest == toy.digest != other.digest and issued.parameters["noise_std"] == 0.05
    assert issued.code == code_digest(toy) == code_digest(other)
    assert {"python", "numpy", "scipy", "rl_oodkit"} <= issued.versions.keys()


def test_the_code_digest_sees_the_fixture_s_own_classes(toy):
    """A class of another module changes the digest."""
    assert code_digest(with_problem(toy, Biased(toy.problem))) != code_digest(toy)


def test_a_stored_record_is_verified(issued, tmp_path):
    """Whole it loads; with a byte changed it does not; and nothing half-written is left."""
    path = tmp_path / "toy.json"
    issued.save(path)
    assert Certificate.load(path) == issued
    path.write_bytes(path.read_bytes().replace(b"passed", b"Passed", 1))
    with pytest.raises(DamagedFileError):
        Certificate.load(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["toy.json", "toy.json.sha256"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"fixture": 3}', "{" * 99])
def test_foreign_text_is_a_named_error(text):
    """What is no record is refused."""
    with pytest.raises(ParameterError):
        Certificate.from_json(text)


@pytest.mark.parametrize("wrong", [{"states": 3}, {"draws": 1}, {"worlds": 1}, {"draws": 2.5}, {"states": "many"}])
def test_counts_are_checked_before_anything_runs(toy, wrong):
    """Named errors for counts that are too small or no integers."""
    with pytest.raises(ParameterError):
        certify(toy, **wrong)


# -- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def registered():
    """Register the toy for the time of a test."""
    names = ("test/Toy-v1",)
    for name in names:
        tags = {"fixture": "rl_oodkit.oracles.toys:toy_fixture", "spec": "rl_oodkit.oracles.toys:ToySpec"}
        registry.register("env", name, summary="A toy.", **tags)(ToySpec)
    yield names[0]
    for name in names:
        registry._STATE.entries.pop(("env", name))


@pytest.fixture
def shell(capsys):
    """Run the command line in this process; return exit code, output and errors."""

    def run(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        os.environ.pop("RL_OODKIT_DEBUG", None)
        printed = capsys.readouterr()
        return end.value.code, printed.out, printed.err

    return run


QUICK = ("--draws", "20000", "--worlds", "40")


def test_certify_prints_the_table_and_writes_the_record(shell, registered, tmp_path):
    """Code 0, one line a check, and a file that loads."""
    path = tmp_path / "found.json"
    code, out, err = shell("certify", registered, "--json", str(path), *QUICK)
    assert code == 0, err
    assert all(f"  {name} " in out for name in ROWS) and "passed" in out
    (record,) = load_certificates(path)
    assert record.passed and record.fixture == "rl_oodkit/Toy-v1"


def test_a_failed_check_is_code_1_and_still_recorded(shell, registered, tmp_path):
    """The message names fixture and check."""
    path = tmp_path / "found.json"
    code, out, err = shell("certify", registered, "--set", "action_bound=0.3", "--json", str(path), *QUICK)
    assert code == 1 and "C9" in err and len(err.splitlines()) == 1 and "FAILED" in out
    assert not load_certificates(path)[0].passed


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("test/Toi-v1",),
        ("test/Toy-v1", "--all"),
        ("test/Toy-v1", "--set", "nonsense"),
        ("test/Toy-v1", "--set", "colour=red"),
        ("test/Toy-v1", "--set", "discount=2"),
        ("lunarlander",),
    ],
)
def test_wrong_calls_are_code_2(shell, registered, words, tmp_path):
    """Unknown ids and parameters, no id, ids beside --all: one line, no file."""
    code, out, err = shell("certify", *words, "--json", str(tmp_path / "x.json"))
    assert code == 2 and len(err.strip().splitlines()) == 1 and not out and not list(tmp_path.iterdir())


def test_a_record_that_cannot_be_written_is_found_out_first(shell, registered, tmp_path, monkeypatch):
    """Before the work."""
    monkeypatch.setattr("rl_oodkit.oracles.certificate.certify", None)
    code, _, err = shell("certify", registered, "--json", str(tmp_path))
    assert code == 1 and "caught earlier" not in err


def test_a_file_of_another_kind_is_foreign(tmp_path):
    """A JSON file of this package that holds something else."""
    from rl_oodkit.core.store import save_json

    save_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(ForeignFileError):
        load_certificates(tmp_path / "x.json")
