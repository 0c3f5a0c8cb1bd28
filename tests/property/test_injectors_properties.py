"""Labels, schedules, laws and collections, as properties."""

import subprocess
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.box2d.lunar_lander import heuristic
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_oodkit.core.registry import entries, names
from rl_oodkit.core.seeds import stream
from rl_oodkit.ood.case import Case
from rl_oodkit.ood.collect import collect, collect_cached, collection_spec, make_lander
from rl_oodkit.ood.contract import InjectionSpec, SensorFloor, SensorScale, sensor_scale
from rl_oodkit.ood.injectors import InjectorWrapper, episode_onset, injector_levels, make_injector
from rl_oodkit.ood.labels import BLOCK, BLOCKS, SPLITS, active_labels, seed_range, segments
from rl_oodkit.ood.lander import LANDER_SCALE, lander_parameters, lunar_lander
from rl_oodkit.ood.schedules import SCHEDULES, Schedule, make_schedule
from rl_oodkit.ood.strengths import calibrate_strengths

steps = st.integers(0, 60)


def pilot(observation):
    """Gymnasium's own pilot, a deterministic policy that lands."""
    return heuristic(SimpleNamespace(unwrapped=SimpleNamespace(continuous=False)), observation)


@given(steps, st.integers(-1, 80), st.one_of(st.just(-1), st.integers(0, 40)), st.integers(0, 30))
def test_segments_partition_an_episode(length, onset, span, transient):
    """Transient and steady are the active steps; pre comes before, post after, and nothing is left over."""
    offset = -1 if span < 0 or onset < 0 else onset + span
    active, parts = active_labels(length, onset, offset), segments(length, onset, offset, transient)
    assert np.array_equal(np.isin(parts, (1, 2)), active)
    assert np.all(np.diff(parts) >= 0) and len(parts) == length
    assert (parts == 1).sum() <= transient


@given(
    st.sampled_from(sorted(SPLITS)),
    st.sampled_from(sorted(SPLITS)),
    st.integers(0, BLOCKS - 1),
    st.integers(0, BLOCKS - 1),
)
def test_seed_ranges_never_meet(a, b, i, j):
    """Two splits, or two blocks of one, share no episode."""
    x, y = seed_range(a, BLOCK, i), seed_range(b, BLOCK, j)
    assert (a, i) == (b, j) or x[-1] < y[0] or y[-1] < x[0]
    assert min(x) >= 1_000_000 and max(x) < 2**31


@given(
    st.sampled_from(SCHEDULES),
    st.integers(0, 30),
    st.integers(1, 20),
    st.integers(1, 20),
    st.floats(0.01, 1),
    st.booleans(),
)
def test_profiles(kind, onset, span, period, duty, lasting):
    """A profile is 0 before the onset, in [0, 1] always, positive at the onset, and 0 from the offset on."""
    extra = {
        "step": {},
        "ramp": {"ramp": span, "duration": None if lasting else 3 * span},
        "transient": {"duration": span},
        "recurring": {"period": period, "duty": duty, "duration": None if lasting else 3 * period},
    }[kind]
    schedule = Schedule(kind, onset=onset, **extra)
    tau, offset = schedule.draw(stream(0, "profiles"))
    profile = np.array([schedule.profile(t, tau) for t in range(150)])
    assert tau == onset and not profile[:onset].any() and profile[onset] > 0
    assert profile.min() >= 0 and profile.max() <= 1
    if offset >= 0:
        assert not profile[offset:].any()
    if kind != "recurring":
        assert np.array_equal(profile > 0, active_labels(150, tau, offset))
        assert np.all(np.diff(profile[tau : offset if offset >= 0 else None]) >= 0)
    assert np.array_equal(schedule.mask(150, tau), profile > 0)


@given(st.integers(0, 80), st.integers(0, 40), st.integers(0, 10_000))
def test_onsets_stay_in_their_range(low, span, episode):
    """The onset of an episode is a function of three numbers."""
    schedule = Schedule(onset_low=low, onset_high=low + span)
    onset, offset = episode_onset(schedule, 3, episode)
    assert low <= onset <= low + span and offset == -1
    assert (onset, offset) == episode_onset(schedule, 3, episode)


@given(st.sampled_from(names("injector")), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=200)
def test_the_strength_in_force_lies_between_identity_and_strength(name, c, d):
    """At 0 it is the identity value, at 1 the strength, and it moves one way."""
    law = make_injector(name)
    ends = sorted((law.identity, law.at(1.0)))
    assert law.at(0.0) == law.identity and ends[0] <= law.at(c) <= ends[1]
    low, high = sorted((c, d))
    assert abs(law.at(high) - law.identity) >= abs(law.at(low) - law.identity)


@given(st.integers(1, 8), st.lists(st.booleans(), min_size=5, max_size=60))
def test_a_delay_never_runs_backwards(k, active):
    """Time stamps never decrease, never exceed the clock, and no delivery is older than k."""
    law = make_injector("delay", k)
    state = law.start(stream(0, "delay"), InjectionSpec(gym.spaces.Box(0, 99, (1,)), gym.spaces.Discrete(2)))
    law.see(state, np.zeros(1))
    delivered = [0]
    for t, on in enumerate(active, 1):
        law.see(state, np.array([t]))
        delivered.append(int(law.observe(state, np.array([t]), 1.0)[0]) if on else t)
    ages = np.arange(len(delivered)) - delivered
    assert np.all(np.diff(delivered) >= 0) and ages.min() >= 0 and ages.max() <= k


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 1000))
@settings(max_examples=50)
def test_delivered_observations_are_real(k, onset, seed):
    """Every delay law delivers something that the sensors once said."""
    spec = InjectionSpec(gym.spaces.Box(0, 99, (1,)), gym.spaces.Discrete(2))
    for name, strength in (("delay", k), ("jitter", k), ("hold", k), ("loss", 0.7)):
        law = make_injector(name, strength)
        state = law.start(stream(seed, name), spec)
        for t in range(30):
            law.see(state, np.array([t]))
            if t >= onset:
                assert 0 <= law.observe(state, np.array([t]), 1.0)[0] <= t


@pytest.mark.parametrize("k", [1, 3, 6])
def test_observation_delay_is_action_delay_under_a_real_pilot(k):
    """Returns agree to the bit over whole landings, and differ from the clean ones."""
    different = 0
    for seed in range(6):
        plays = []
        for name in ("delay", "adelay"):
            case = Case(make_injector(name, k), act=pilot, steps=400, schedule=Schedule(onset=40))
            plays.append(case.play(case.env(), seed))
        assert plays[0].rewards == plays[1].rewards
        assert np.array_equal(plays[0].true, plays[1].true)
        different += plays[0].rewards != case.clean(seed).rewards
    assert different >= 5


@pytest.mark.parametrize("name", names("injector"))
def test_every_injector_does_something(name):
    """At its largest level a law changes a landing, and only after the onset."""
    law = make_injector(name, max(injector_levels(name), key=lambda x: abs(injector_levels(name)[x])))
    case = Case(law, act=pilot, steps=400, schedule=Schedule(onset=30))
    play, clean = case.play(case.env(), 4), case.clean(4)
    assert play.rewards[:30] == clean.rewards[:30]
    assert play.rewards != clean.rewards or not np.array_equal(play.observations, clean.observations)


@pytest.mark.parametrize("name", [e.id for e in entries("injector") if e.obj.layer == "physics"])
def test_a_failing_step_leaves_the_plant_nominal(name, monkeypatch):
    """Parameters are restored when the step raises, module constants included."""
    env = make_lander(make_injector(name), Schedule(onset=0))
    env.reset(seed=1)
    nominal = lander_parameters(env)
    monkeypatch.setattr(env.env, "step", lambda action: 1 / 0)
    for action in range(4):
        with pytest.raises(ZeroDivisionError):
            env.step(action)
        assert lander_parameters(env) == nominal


@pytest.mark.parametrize("name", names("injector"))
def test_the_environments_own_generator_is_left_alone(name):
    """LunarLander draws two numbers a step, whatever is injected; a third would shift the rest."""
    env, bare = make_lander(make_injector(name), Schedule(onset=2)), lunar_lander()
    for e in (env, bare):
        e.reset(seed=8)
    for t in range(20):
        env.step(t % 4)
        bare.step(0)
        assert env.unwrapped.np_random.bit_generator.state == bare.unwrapped.np_random.bit_generator.state


def test_a_fresh_process_gives_the_same_bytes():
    """One digest over an episode of every injector, here and in another interpreter."""
    code = (
        "import hashlib\n"
        "from rl_oodkit.core.registry import names\n"
        "from rl_oodkit.ood.case import Case\n"
        "from rl_oodkit.ood.injectors import make_injector\n"
        "h = hashlib.sha256()\n"
        "for name in names('injector'):\n"
        "    case = Case(make_injector(name), steps=45)\n"
        "    for o in case.play(case.env(), 5).observations: h.update(o.tobytes())\n"
        "print(h.hexdigest())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "5"}
    )
    space: dict = {}
    lines: list = []
    exec(code.replace("print(h.hexdigest())", "lines.append(h.hexdigest())"), {"lines": lines}, space)
    assert run.stdout.strip() == lines[0]


def test_the_floor_is_the_same_noise_with_and_without_a_law():
    """Under a law that does nothing the floor's noise does not change, and it spares the contact bits."""
    floor = SensorFloor(0.01)
    runs = []
    for law, schedule in ((None, None), (make_injector("gravity", 0.0), Schedule(onset=5))):
        env = InjectorWrapper(lunar_lander(), law, schedule, seed=2, floor=floor)
        seen = [env.reset(seed=3)] + [env.step(t % 4)[::4] for t in range(30)]
        runs.append(np.array([o for o, _ in seen]))
        true = np.array([info["injection"]["true_observation"] for _, info in seen])
    assert np.array_equal(*runs)
    assert np.array_equal(runs[0][:, 6:], true[:, 6:]) and np.all(runs[0][:, :6] != true[:, :6])
    noise = (runs[0] - true)[:, :6] / LANDER_SCALE.sd
    assert 0.007 < noise.std() < 0.013


def test_a_ramp_grows_from_nothing():
    """A ramped bias is the schedule's profile times the bias."""
    law, schedule = make_injector("bias", 0.5), Schedule("ramp", onset=4, ramp=10)
    env = InjectorWrapper(lunar_lander(), law, schedule, seed=2)
    env.reset(seed=3)
    gaps = []
    for t in range(25):
        observation, *_, info = env.step(t % 4)
        gaps.append(abs(observation - info["injection"]["true_observation"])[1] / LANDER_SCALE.sd[1])
    assert np.allclose(gaps, [0.5 * schedule.profile(t, 4) for t in range(25)], atol=1e-5)


def test_sensor_scale_finds_bits():
    """Channels of zeros and ones are bits; the rest is measured."""
    rows = np.column_stack([stream(0, "scale").normal(0, 3, 5000), np.arange(5000) % 2])
    scale = sensor_scale(SimpleNamespace(observations=rows), "a test")
    assert scale.continuous == (0,) and scale.binary == (1,) and abs(scale.sd[0] - 3) < 0.1
    assert scale == SensorScale((0,), scale.sd, (1,), "a test")


def test_collections_share_seeds_and_onsets(tmp_path):
    """Same seed, same onsets; another seed, other episodes; what is cached is what is collected."""
    from rl_oodkit.core.runs import RunStore

    store = RunStore(tmp_path)
    a = collect_cached("dqn-lunarlander", 3, "ood", store=store, injector="gain", strength="light")
    b = collect_cached("dqn-lunarlander", 3, "ood", store=store, injector="gain", strength="light")
    c = collect("dqn-lunarlander", 3, "ood", injector="noise", strength="light", seed=1)
    assert np.array_equal(a.observations, b.observations) and a.meta == b.meta
    assert not set(a.env_seeds) & set(c.env_seeds)
    again = collect("dqn-lunarlander", 3, "ood", injector="noise", strength="light")
    assert np.array_equal(a.onset, again.onset) and np.array_equal(a.env_seeds, again.env_seeds)
    assert len(list(tmp_path.rglob("manifest.json"))) == 1


def test_keys_of_collections_tell_them_apart():
    """Everything that changes an episode changes the key."""
    from rl_oodkit.training.checkpoint import load_policy

    policy = load_policy("dqn-lunarlander")
    options = [
        {},
        {"floor": 0.005},
        {"seed": 1},
        {"record": ("q", "features")},
        {"injector": "gain"},
        {"injector": "gain", "strength": -0.3},
        {"injector": "swap", "strength": 2},
        {"injector": "gain", "schedule": make_schedule("ramp")},
        {"schedule": Schedule(onset=40)},
    ]
    keys = [collection_spec(policy, 5, "ood", **o).key for o in options]
    keys += [collection_spec(policy, 6, "ood").key, collection_spec(policy, 5, "test").key]
    assert len(set(keys)) == len(keys)
    assert collection_spec(policy, 5, "ood").key == keys[0]


def test_episodes_that_end_before_their_onset_are_counted():
    """A late onset drops the short episodes, and the sham marks them with -1."""
    lengths = collect("dqn-lunarlander", 8, "ood").lengths
    late = Schedule(onset=int(np.sort(lengths)[3]))
    clean = collect("dqn-lunarlander", 8, "ood", schedule=late)
    disturbed = collect("dqn-lunarlander", 8, "ood", injector="gain", strength="light", schedule=late)
    short = int((lengths <= late.onset).sum())
    assert clean.meta["n_no_onset"] == disturbed.meta["n_no_onset"] == short > 0
    assert disturbed.n_episodes == 8 - short and (clean.onset == -1).sum() == short


def test_harm_grows_with_strength():
    """Bisection returns strengths in the order of the targets, on the far side of each."""
    table = calibrate_strengths("dqn-lunarlander", "gravity", {"light": 0.95, "extreme": 0.4}, n=6, iters=3)
    assert table.strength.is_monotonic_increasing and (table.normalised_return < table.target).all()
    assert table.reached.all() and not table.harmful.isna().any()
