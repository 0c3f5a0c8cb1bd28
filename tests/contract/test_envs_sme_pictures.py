"""Frames hold the observation and nothing else, and every figure draws the numbers it says it draws."""

import json
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

from rl_oodkit.core.errors import NonFiniteError, ParameterError, RlOodkitError, ShapeError
from rl_oodkit.core.seeds import stream
from rl_oodkit.envs import sme_pictures as pictures
from rl_oodkit.envs.sme import sme
from rl_oodkit.envs.sme_knobs import SMESpec
from rl_oodkit.envs.sme_world import SMEProblem
from rl_oodkit.oracles.baselines import UniformPolicy, ZeroPolicy, oracle_policy
from rl_oodkit.oracles.fixture import of
from rl_oodkit.oracles.folding import tent
from rl_oodkit.oracles.noise import episode_stream

SMALL = sme(SMESpec(states=2, actions=2))
WIDE = sme(SMESpec(complexity=4, phase_noise=1.0, observation_noise_std=0.1))
KNOBS = (
    {"states": 1, "actions": 1},
    {"states": 2, "actions": 1},
    {},
    {"preset": "large"},
    {"preset": "noisy"},
    {"preset": "published"},
)


class Constant:
    """Always give the same answer."""

    name = "constant"

    def __init__(self, m, value):
        self.m, self.value = m, value

    def act(self, s):
        """Return the answer, shape (m, B)."""
        return np.full((self.m, s.shape[1]), self.value)


def shown(figure, panel=0):
    """Return the numbers of the image in a panel."""
    return np.asarray(figure.axes[panel].images[0].get_array())


def png(figure):
    """Return a figure's pixels as bytes."""
    figure.canvas.draw()
    return bytes(figure.canvas.buffer_rgba())


def centres(extent):
    """Return the middle of every pixel along a side."""
    edges = np.linspace(-extent, 1 + extent, 101)
    return (edges[1:] + edges[:-1]) / 2


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
def test_a_frame_is_an_image_of_its_state(knobs):
    """Equal states give equal bytes, other points, clocks and shown earnings give others."""
    spec = SMESpec(**knobs)
    problem = SMEProblem(spec)
    s = problem.initial(stream(0, "frame"), 1)[:, 0]
    frame = pictures.draw_sme(spec, s)
    assert frame.shape == (240, 320, 3) and frame.dtype == np.uint8 and frame.std() > 5
    assert np.array_equal(pictures.draw_sme(spec, s.copy()), frame)
    n = problem.cube
    for row, change in (
        (0, 0.2),
        (n - 1, 0.2),
        (n, 0.3 * spec.horizon),
        (n + 2, 0.4 * spec.reward_every),
        (n + 3, 1.0),
    ):
        other = s.copy()
        other[row] += change if row >= n or other[row] < 0.5 else -change
        assert not np.array_equal(pictures.draw_sme(spec, other), frame), row


def test_a_frame_does_not_know_the_question():
    """The same state in the same world looks the same, whatever the target policy, thresholds and seeds."""
    state = np.concatenate([stream(1, "frame").random(8), [30.0, 2.0, 1.0, 0.0]])
    frame = pictures.draw_sme(SMESpec(reward_every=5, complexity=1), state)
    for knobs in (
        {"complexity": 4},
        {"policy": "wheel"},
        {"instance_seed": 9},
        {"kill_threshold": 0.1},
        {"actions": 1},
    ):
        assert np.array_equal(pictures.draw_sme(SMESpec(reward_every=5, **knobs), state), frame), knobs


def test_a_frame_is_a_function_of_the_observation():
    """What the agent is not shown is not drawn: pending earnings behind, and how point and noise share their sum."""
    spec = SMESpec(states=3, actions=1, reward_every=5, observation_noise_std=0.1, legacy_payout=True)
    problem = SMEProblem(spec)
    one = np.array([0.25, 0.5, 0.75, 3.0, 2.0, 1.0, 0.0, 0.125, 0.0, -0.125])
    two = np.array([0.375, 0.5, 0.625, 3.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    assert np.array_equal(problem.observe(one[:, None]), problem.observe(two[:, None]))
    assert np.array_equal(pictures.draw_sme(spec, one), pictures.draw_sme(spec, two))


def test_bars_are_as_long_as_their_numbers():
    """The dark pixels of a coordinate's bar are its share of the whole bar's."""
    for value in (0.25, 0.5, 1.0):
        frame = pictures.draw_sme(SMESpec(states=1, actions=1), np.array([value, 0.0, 0.0, 0.0, 0.0]))
        row = frame[91, 190:312].astype(int).sum(axis=1)
        dark, light = (row < 200).sum(), ((row >= 200) & (row < 740)).sum()
        assert abs(dark / (dark + light) - value) < 0.03


def test_a_frame_of_noise_far_outside_stays_in_the_picture():
    """A point that noise has carried away is drawn at the edge, and text and outline remain."""
    spec = SMESpec(states=2, actions=1, observation_noise_std=10.0)
    far = pictures.draw_sme(spec, np.array([0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 40.0, -40.0]))
    edge = pictures.draw_sme(spec, np.array([0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.6, -0.6]))
    assert np.array_equal(far, edge)


def test_an_environment_renders_from_reset_to_the_end():
    """Frames come through the environment, of a terminal state too."""
    env = gym.make("rl_oodkit/SME-v1", render_mode="rgb_array", preset="strict")
    env.reset(seed=3)
    first = env.render()
    for _ in range(100):
        *_, terminated, truncated, _ = env.step(np.zeros(4))
        if terminated or truncated:
            break
    assert terminated and env.render().shape == first.shape == (240, 320, 3)
    assert not np.array_equal(env.render(), first)


@pytest.mark.parametrize(
    ("spec", "state", "error"),
    [
        (None, np.zeros(12), ParameterError),
        (SMESpec, np.zeros(12), ParameterError),
        (SMESpec(), np.zeros(11), ShapeError),
        (SMESpec(), np.zeros((12, 1)), ShapeError),
        (SMESpec(), np.full(12, np.nan), NonFiniteError),
        (SMESpec(observation_noise_std=0.1), np.zeros(12), ShapeError),
    ],
)
def test_a_frame_of_nonsense_is_refused(spec, state, error):
    """Other families' knobs, wrong lengths and NaN have a name."""
    with pytest.raises(error):
        pictures.draw_sme(spec, state)


@pytest.mark.parametrize("extent", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("fixture", [SMALL, WIDE], ids=["two states", "eight states"])
def test_the_slice_is_the_target(fixture, extent):
    """Every pixel is the target at its middle, with the first axis across and the second up."""
    problem, at = fixture.problem, np.linspace(0.1, 0.9, fixture.problem.cube)
    picture, x = shown(pictures.slice_figure(fixture, 1, (1, 0), at, extent)), centres(extent)
    for up, across in stream(0, "pixels").integers(100, size=(20, 2)):
        point = at.copy()
        point[1], point[0] = x[across], x[up]
        assert abs(picture[up, across] - problem.instance.target(point[:, None])[1, 0]) < 1e-9


def test_the_slice_is_antisymmetric_and_saturates():
    """A plane through the centre is its own negative, and far outside one layer says 0 or 1."""
    near, far = (shown(pictures.slice_figure(SMALL, extent=extent)) for extent in (0.0, 20.0))
    assert np.abs(near + near[::-1, ::-1] - 1).max() < 1e-12
    assert ((far == 0) | (far == 1)).mean() > 0.9 > 0.5 > ((near == 0) | (near == 1)).mean()


def test_the_cube_is_outlined():
    """The line of both kinds of planes is the unit square."""
    for figure in (pictures.slice_figure(SMALL), pictures.regret_field_figure(SMALL, ZeroPolicy(2))):
        corners = {tuple(map(float, c)) for c in figure.axes[0].lines[0].get_xydata()}
        assert corners == {(0, 0), (0, 1), (1, 0), (1, 1)}
        assert figure.axes[0].get_xlim() == figure.axes[0].get_ylim() == (-0.5, 1.5)


@pytest.mark.parametrize("fixture", [SMALL, WIDE, sme(SMESpec(preset="strict"))], ids=["two", "wide", "strict"])
def test_the_optimum_has_no_regret_anywhere(fixture):
    """The field of the oracle is 0, in the cube and outside."""
    assert shown(pictures.regret_field_figure(fixture, oracle_policy(fixture.oracle), extent=2.0)).max() == 0


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_the_regret_field_is_what_the_problem_says(value):
    """Every pixel of a constant policy is one less what the problem lets it earn there."""
    problem, at, x = WIDE.problem, np.full(8, 0.4), centres(0.5)
    picture = shown(pictures.regret_field_figure(WIDE, Constant(4, value), (2, 5), at, 0.5))
    drawn = stream(0, "sampled").integers(100, size=(200, 2))
    points = np.repeat(at[:, None], 200, axis=1)
    points[2], points[5] = x[drawn[:, 1]], x[drawn[:, 0]]
    known = 1 - problem.outcome(problem.placed(points), np.full((4, 200), value)).earned
    assert np.abs(picture[drawn[:, 0], drawn[:, 1]] - known).max() < 1e-9


@pytest.mark.parametrize("fixture", [SMALL, WIDE, sme(SMESpec(states=1, actions=1))], ids=["two", "eight", "one"])
def test_the_fold_draws_tents_and_the_step(fixture):
    """Tents are those of the drifts, and the net goes where a step under the optimum without a shake takes it."""
    problem, (tents, *nets) = fixture.problem, pictures.fold_figure(fixture).axes
    assert len(tents.lines) == min(problem.cube, 4) and len(nets) == (2 if problem.cube > 1 else 0)
    for line, b in zip(tents.lines, problem.instance.drift, strict=False):
        assert np.array_equal(line.get_ydata(), tent(line.get_xdata() + b))
    for before, after in zip(*(net.lines[:-1] for net in nets), strict=True) if nets else ():
        x = np.full((problem.cube, 501), 0.5)
        x[:2] = before.get_xydata().T
        ahead = tent(problem.instance.drift[:, None] + x + problem.instance.pull.T @ problem.instance.target(x))
        assert np.abs(after.get_xydata().T - ahead[:2]).max() < 1e-12


def test_clouds_tell_feedback_from_chance():
    """Under the optimum states bunch, under random actions they do not, and shaken states never do."""
    policies = [oracle_policy(SMALL.oracle), UniformPolicy(np.zeros(2), np.ones(2))]
    panels = pictures.trajectory_figure(SMALL, policies, range(100)).axes
    share = [int(panel.get_title().split()[-2].rstrip("%")) for panel in panels[:2]]
    assert len(panels) == 3 and share[0] > 30 and share[1] < 8
    shaken = sme(SMESpec(states=2, actions=2, phase_noise=1.0))
    title = pictures.trajectory_figure(shaken, [oracle_policy(shaken.oracle)], range(100)).axes[0].get_title()
    assert int(title.split()[-2].rstrip("%")) < 8


def test_clouds_end_with_their_episodes():
    """A world that has been ended adds no states and no path: one that ends in its first step shows its start."""
    strict = sme(SMESpec(states=2, actions=2, kill_threshold=0.9))
    panel = pictures.trajectory_figure(strict, [Constant(2, 0.0)], range(50)).axes[0]
    cloud, path = (line.get_xydata() for line in panel.lines[:2])
    assert 50 <= len(cloud) < 100 and 1 <= len(path) <= 3


def test_the_path_is_the_first_world_s():
    """Its dots are the states of a walk with the first seed."""
    s, policy = SMALL.problem.initial(episode_stream(4, 0), 1), Constant(2, 0.3)
    path = pictures.trajectory_figure(SMALL, [policy], [4, 5], (1, 0)).axes[0].lines[1].get_xydata()
    for place in path:
        assert np.allclose(place, s[[1, 0], 0], atol=1e-12)
        s = SMALL.problem.step(s, policy.act(s), np.zeros((0, 1)))
    assert len(path) == 6


@pytest.mark.parametrize("legacy", [False, True])
def test_payments_add_up(legacy):
    """What is earned is paid, but for the pending share that the published rule takes at a kill."""
    fixture = sme(SMESpec(reward_every=10, kill_threshold=0.2, legacy_payout=legacy))
    target = fixture.problem.instance.target

    class Tired(Constant):
        """Act optimally for 16 steps."""

        def act(self, s):
            """Return best actions, then wrong ones."""
            return np.where(s[8] < 16, target(s[:8]), (target(s[:8]) + 0.5) % 1)

    above, below = pictures.payment_figure(fixture, Tired(4, 0)).axes
    earned, pending = above.lines[0].get_ydata(), below.lines[0].get_ydata()
    assert earned.tolist() == [1.0] * 16 + [0.0] and "then ended" in above.get_title()
    assert pending.tolist() == [*range(1, 10), 0, *range(1, 7), 0]
    paid = {seg[1][0]: seg[1][1] for seg in below.collections[0].get_segments()}
    assert paid == ({10.0: 10.0} if legacy else {10.0: 10.0, 17.0: 6.0})


def test_payments_of_a_whole_episode():
    """The optimum is paid the number of steps, and nobody is thrown out."""
    fixture = sme(SMESpec(reward_every=3, horizon=7))
    above, below = pictures.payment_figure(fixture, oracle_policy(fixture.oracle), seed=2).axes
    assert above.get_title() == "oracle: earned 7.00, paid 7.00 in 7 steps"
    paid = [seg[1].tolist() for seg in below.collections[0].get_segments()]
    assert paid == [[3.0, 3.0], [6.0, 3.0], [7.0, 1.0]]


CALLS = {
    "slice": lambda f: pictures.slice_figure(f),
    "fold": lambda f: pictures.fold_figure(f),
    "trajectory": lambda f: pictures.trajectory_figure(f, [ZeroPolicy(2), oracle_policy(f.oracle)], range(5)),
    "regret": lambda f: pictures.regret_field_figure(f, ZeroPolicy(2)),
    "payment": lambda f: pictures.payment_figure(f, ZeroPolicy(2)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_figure_is_the_same_twice_whatever_the_user_s_settings(call):
    """Equal calls give equal pixels, and the settings of the user stay as they were."""
    import matplotlib

    first = png(call(SMALL))
    with matplotlib.rc_context({"font.size": 20, "lines.linewidth": 9, "axes.grid": True}):
        kept = dict(matplotlib.rcParams)
        second = call(SMALL)
        assert dict(matplotlib.rcParams) == kept
    assert png(second) == first


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("wrong", ["rl_oodkit/SME-v1", None, SMESpec(), "arm"], ids=str)
def test_other_families_are_refused(call, wrong):
    """What is no fixture of this family is refused with a word on what is."""
    thing = of("rl_oodkit/LQR-v1") if wrong == "arm" else wrong
    with pytest.raises(ParameterError, match="oracles.fixture.of"):
        call(thing) if call is not CALLS["trajectory"] else pictures.trajectory_figure(thing, [ZeroPolicy(2)], [0])


ONE = sme(SMESpec(states=1, actions=1))


@pytest.mark.parametrize(
    "call",
    [
        lambda: pictures.slice_figure(SMALL, 2),
        lambda: pictures.slice_figure(SMALL, -1),
        lambda: pictures.slice_figure(SMALL, 0.5),
        lambda: pictures.slice_figure(SMALL, axes=(0, 2)),
        lambda: pictures.slice_figure(SMALL, axes=(-1, 0)),
        lambda: pictures.slice_figure(SMALL, axes=(1, 1)),
        lambda: pictures.slice_figure(SMALL, axes=(0, 1, 1)),
        lambda: pictures.slice_figure(SMALL, axes=0),
        lambda: pictures.slice_figure(SMALL, axes="01"),
        lambda: pictures.slice_figure(SMALL, at=[0.5]),
        lambda: pictures.slice_figure(SMALL, at=[0.5, np.nan]),
        lambda: pictures.slice_figure(SMALL, extent=-0.1),
        lambda: pictures.slice_figure(SMALL, extent=np.inf),
        lambda: pictures.slice_figure(ONE),
        lambda: pictures.regret_field_figure(ONE, ZeroPolicy(1)),
        lambda: pictures.regret_field_figure(SMALL, None),
        lambda: pictures.regret_field_figure(SMALL, ZeroPolicy),
        lambda: pictures.regret_field_figure(SMALL, ZeroPolicy(1)),
        lambda: pictures.regret_field_figure(SMALL, Constant(2, np.nan)),
        lambda: pictures.trajectory_figure(SMALL, [], [0]),
        lambda: pictures.trajectory_figure(SMALL, ZeroPolicy(2), [0]),
        lambda: pictures.trajectory_figure(SMALL, [ZeroPolicy(2)] * 7, [0]),
        lambda: pictures.trajectory_figure(SMALL, [ZeroPolicy(2)], []),
        lambda: pictures.trajectory_figure(SMALL, [ZeroPolicy(2)], [-1]),
        lambda: pictures.trajectory_figure(SMALL, [Constant(2, np.inf)], [0]),
        lambda: pictures.trajectory_figure(ONE, [ZeroPolicy(1)], [0]),
        lambda: pictures.payment_figure(SMALL, ZeroPolicy(3)),
        lambda: pictures.payment_figure(SMALL, Constant(2, np.nan)),
        lambda: pictures.payment_figure(SMALL, ZeroPolicy(2), seed=-1),
        lambda: pictures.payment_figure(SMALL, 3),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(call):
    """No bare IndexError, ValueError or TypeError comes out of a wrong argument."""
    with pytest.raises(RlOodkitError):
        call()


def test_matplotlib_waits_until_something_is_drawn():
    """Importing the viewer imports no drawing library."""
    code = "import sys, json, rl_oodkit.envs.sme_pictures; print(json.dumps('matplotlib' in sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(said) is False
