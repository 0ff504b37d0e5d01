"""A job: what it keeps is used again by the same fit only, whole or under the same budget, and on all ranks."""

import pickle
import shutil

import numpy as np
import pytest

from labelwise.errors import ConfigError
from labelwise.runtime.budget import NO_LIMIT
from labelwise.runtime.job import Job
from labelwise.runtime.progress import stage_name
from labelwise.runtime.tasks import LostTaskError, Shared, Tasks
from training.forked_ranks import run_ranks


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    moved = Clock()
    monkeypatch.setattr("time.monotonic", moved)
    return moved


class Made:
    """Makes arrays of a value, and counts."""

    def __init__(self):
        self.names = []

    def __call__(self, name, value=1.0, job=None):
        def make():
            self.names.append(name)
            if job is not None:
                job.budget.end_early()
            return {"values": np.full(3, value)}

        return make


@pytest.fixture
def made():
    return Made()


def fit(folder, identity="mine", seconds=None):
    return Job(folder, identity=identity, budget=NO_LIMIT.limited(seconds))


def test_a_result_is_made_once_and_read_by_the_next_attempt(tmp_path, made):
    for _attempt in range(2):
        with fit(tmp_path).stage("trees-0") as part:
            found = part.kept("tree", made("tree", 2.0))
        np.testing.assert_array_equal(found["values"], np.full(3, 2.0))
        assert not found["values"].flags.writeable, "made or read, the arrays are the same"
    assert made.names == ["tree"]
    assert (tmp_path / "trees-0" / "tree" / "manifest.json").exists()
    for _attempt in range(2):
        Job().kept("tree", made("without a folder"))
    assert made.names[1:] == ["without a folder"] * 2


def test_names_are_plain_and_used_once(tmp_path, made):
    job = fit(tmp_path)
    job.kept("tree", made("tree"))
    with job.stage("level0") as part:
        part.kept("tree", made("another folder"))
    for again in ("tree", "level0"):
        with pytest.raises(ValueError, match=f"the name '{again}' is used twice in"):
            job.kept(again, made(again))
        with pytest.raises(ValueError, match="used twice"), job.stage(again):
            pass
    for name in ("", "..", "a/b", ".hidden", "time.json"):
        with pytest.raises(ValueError, match="names of stages"):
            job.kept(name, made(name))
    with pytest.raises(ValueError, match="needs an identity"):
        Job(tmp_path).kept("tree", made("tree"))


def test_work_of_another_identity_is_ignored_and_replaced_by_what_is_made(tmp_path, made, caplog):
    fit(tmp_path).kept("tree", made("mine"))
    fit(tmp_path, "other").kept("tree", made("other", 2.0))
    assert made.names == ["mine", "other"]
    assert "tree: not used: it belongs to another training" in caplog.text
    np.testing.assert_array_equal(fit(tmp_path, "other").kept("tree", made("again"))["values"], np.full(3, 2.0))


def test_a_damaged_result_is_made_again_and_files_of_others_stay(tmp_path, made, caplog):
    fit(tmp_path).kept("tree", made("tree"))
    file = tmp_path / "tree" / "arrays.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    fit(tmp_path).kept("tree", made("after damage"))
    assert "not used" in caplog.text
    shutil.rmtree(tmp_path / "tree")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "thesis.txt").write_text("years of work")
    fit(tmp_path).kept("tree", made("beside a thesis"))
    assert made.names == ["tree", "after damage", "beside a thesis"]
    assert (tmp_path / "tree" / "thesis.txt").read_text() == "years of work"
    assert "training continues" in caplog.text


def test_what_a_kill_left_half_written_is_removed(tmp_path, made):
    (tmp_path / ".tree.new-abc").mkdir()
    fit(tmp_path).kept("tree", made("tree"))
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]


def test_what_comes_later_follows_from_what_was_made_before(tmp_path, made):
    def attempt(weights):
        job = fit(tmp_path)
        with job.stage("level0") as part:
            part.follow(np.array(weights))  # as a training loop does
        with job.stage("level1") as part:
            part.kept("ranking", made(f"ranking of {weights}"))

    attempt(1)
    attempt(1)
    assert made.names == ["ranking of 1"]
    attempt(2)
    assert made.names == ["ranking of 1", "ranking of 2"], "made by other weights of the same settings and data"


def test_a_cut_result_belongs_to_its_budget_and_a_whole_one_to_any(tmp_path, made):
    def attempt(seconds, cut):
        job = fit(tmp_path, seconds=seconds)
        arrays = job.kept("vectors", made("vectors", 1.0 if cut else 2.0, job if cut else None))
        job.kept("trees", made("trees"))
        return arrays["values"][0], job.budget.ended_early

    assert attempt(60.0, cut=True) == attempt(60.0, cut=True) == (1.0, True)
    assert made.names == ["vectors", "trees"]
    assert attempt(90.0, cut=True) == (1.0, True)
    assert made.names[2:] == ["vectors"], "the content is the same, so what follows is"
    assert attempt(None, cut=False) == (2.0, False)
    assert made.names[3:] == ["vectors", "trees"]
    for seconds in (60.0, 90.0, None):
        assert attempt(seconds, cut=True) == (2.0, False)
    assert made.names[5:] == []


def test_stages_have_parts_of_the_time(clock):
    job = Job(budget=NO_LIMIT.limited(100.0))
    with job.stage("half", 0.5) as part:
        assert (part.budget.remaining(), part.budget.seconds) == (50.0, 100.0)
        clock.now += 20.0
    with job.stage("half-of-the-rest", 0.5) as part:
        assert part.budget.remaining() == 40.0


# --- each ---


def squares(shared, job, keys):
    """At the top level, as tasks need it."""
    job.log(keys=list(keys))
    return {key: None if key == 13 else {"square": np.array([key**2 + shared])} for key in keys}


def test_keys_are_made_in_groups_and_found_one_by_one(tmp_path, caplog):
    records = []

    def attempt(keys, group):
        job = Job(tmp_path, identity="mine", log=lambda **numbers: records.append(numbers["keys"]))
        return {
            key: int(arrays["square"][0]) for key, arrays in job.each("square", keys, squares, 0, group=group).items()
        }

    assert attempt([0, 1, 2], group=2) == {0: 0, 1: 1, 2: 4}
    assert attempt([4, 2, 3, 0], group=3) == {4: 16, 2: 4, 3: 9, 0: 0}
    assert records == [[0, 1], [2], [4, 3]]
    assert sorted(path.name for path in (tmp_path / "square").iterdir()) == ["000", "001", "002", "003", "004"]
    assert [path.name for path in tmp_path.iterdir()] == ["square"], "unfinished work of groups is removed"
    assert attempt([12, 13], group=1) == {12: 144}
    assert "square 13 has diverged" in caplog.text
    assert not (tmp_path / "square" / "013").exists()


def test_unfinished_work_of_other_groups_is_removed_when_all_is_finished(tmp_path):
    def stopped(_shared, job, _keys):
        job.folder.mkdir(parents=True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path).each("square", [0, 1], stopped, group=2)
    assert [path.name for path in tmp_path.rglob("*")] == ["square-unfinished", "square-000-001"]
    fit(tmp_path).each("square", [0], squares, 0)
    assert len(fit(tmp_path).each("square", [0, 1], squares, 0)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["square"]


def test_groups_are_counted_from_one(tmp_path):
    shown = []

    def make(shared, job, keys):
        shown.append(stage_name(""))
        return squares(shared, job, keys)

    fit(tmp_path).each("square", [7, 8, 9], make, 0, group=2)
    fit(tmp_path).each("square", [3, 7], make, 0)
    assert shown == ["square 1 to 2 of 3, ", "square 3 of 3, ", "square 2 of 2, "]


def test_a_key_depends_on_what_is_its_own_only(tmp_path):
    calls = []

    def make(_shared, _job, keys):
        calls.append(list(keys))
        return {key: {"values": np.zeros(1)} for key in keys}

    for tables in ({0: [1], 1: [1]}, {0: [1], 1: [2]}, {0: [1], 1: [2]}):
        fit(tmp_path).each("repetition", [0, 1], make, of=tables)
    assert calls == [[0], [1], [1]]


def test_keys_in_a_folder_of_several_jobs_are_not_replaced(tmp_path):
    calls = []

    def make(value, _job, keys):
        calls.append(value)
        return {key: {"values": np.array([value])} for key in keys}

    folder = tmp_path / "repetitions"
    for _attempt in range(2):
        for number, identity in enumerate(("one", "two")):
            found = Job(identity=identity).each("repetition", [7], make, number, folder=folder)
            assert found[7]["values"][0] == number
    assert calls == [0, 1]
    assert Job(identity="three").each("repetition", [7], make, 2, folder=folder, train=False) == {}
    with pytest.raises(ValueError, match="need the identity"):
        Job().each("repetition", [7], make, 2, folder=folder)


def test_time_is_divided_and_what_is_left_is_left_out(clock, tmp_path, caplog):
    parts = []

    def make(seconds, job, keys):
        parts.append(job.budget.remaining())
        clock.now += seconds
        return {key: {"values": np.zeros(1)} for key in keys}

    def attempt(seconds, budget=100.0):
        parts.clear()
        job = Job(budget=NO_LIMIT.limited(budget))
        found = job.each("repetition", range(4), make, seconds)
        return list(found), job.budget.ended_early

    assert attempt(25.0) == ([0, 1, 2, 3], False)
    assert parts == [25.0] * 4
    assert attempt(40.0) == ([0, 1, 2], True)
    assert parts == [25.0, 10.0, 5.0], "what came late is reserved, up to half of the time"
    assert "time budget: 3 of 4 results of repetition are there, the others are left out" in caplog.text
    assert attempt(500.0) == ([0], True)


class Elsewhere(Tasks):
    """Tasks that run here, on pickled arguments, and lose files."""

    shares_memory = False

    def __init__(self, lost=()):
        self.lost, self.items = list(lost), []

    def _submit(self, function, shared, item):
        self.items.append(item)
        given, keys = pickle.loads(pickle.dumps((shared.value, item)))
        done = super()._submit(lambda *of: pickle.loads(pickle.dumps(function(*of))), Shared(given), keys)
        if self.lost:
            shutil.rmtree(self.lost.pop())
        return done


def test_tasks_write_files_and_what_is_lost_is_made_again(tmp_path):
    records, tasks = [], Elsewhere([tmp_path / "square" / "001"])
    job = Job(tmp_path, identity="mine", tasks=tasks, log=lambda **numbers: records.append(numbers["keys"]))
    found = job.each("square", [0, 1, 13, 2], squares, 5, group=2)
    assert {key: int(arrays["square"][0]) for key, arrays in found.items()} == {0: 5, 1: 6, 2: 9}
    assert tasks.items == [(0, 1), (0, 1), (13, 2)]
    assert records == [[0, 1], [1], [13, 2]], "what another attempt has written is not made again"
    without = Job(tasks=Elsewhere()).each("square", [3], squares, 0)
    assert without[3]["square"][0] == 9, "without a folder results come back as they are"
    job = Job(tmp_path, identity="other", tasks=Elsewhere([tmp_path / "square" / "005"] * 9))
    with pytest.raises(LostTaskError, match=r"lost 4 times because what it had written could not be read: \(5,\)"):
        job.each("square", [5], squares, 0)
    limited = Job(tmp_path, identity="mine", tasks=tasks, budget=NO_LIMIT.limited(60.0))
    with pytest.raises(ConfigError, match="square: a time budget is for one process"):
        limited.each("square", [77], squares, 0)


# --- some ---


class Documents:
    """Numbers, as a data set of documents."""

    name = "numbers"

    def __init__(self, numbers):
        self.numbers = np.asarray(numbers)

    def __len__(self):
        return len(self.numbers)

    def take(self, rows):
        return Documents(self.numbers[rows])


def test_a_sample_is_drawn_by_the_pace_and_the_same_after_an_interruption(clock, tmp_path, made):
    data, held_out = Documents(np.arange(2000)), Documents(np.arange(100))

    def prepare(part):
        clock.now += 0.05 * len(part)

    def attempt(seconds):
        job = fit(tmp_path, seconds=seconds)
        some, valid = job.some((data, held_out), prepare)
        job.kept("tree", made("tree"))
        assert len(valid) == 100
        return some.numbers.tolist()

    first = attempt(80.0)
    assert len(first) == int((80 * 0.25 - 128 * 0.05) / 0.05)
    begin = clock.now
    assert attempt(80.0) == first
    assert clock.now == begin, "the pace is not measured again"
    assert made.names == ["tree"]
    assert len(attempt(1000.0)) == 2000
    assert made.names == ["tree"] * 2, "of other documents"
    assert attempt(None) == list(range(2000))
    assert made.names == ["tree"] * 2, "all documents are the same under any budget"
    assert Job(budget=NO_LIMIT.limited(80.0)).some((data, None), prepare)[1] is None


# --- ranks ---


def test_rank_zero_makes_and_all_ranks_have_it(tmp_path):
    def program(rank):
        def make():
            with open(tmp_path / "made", "a") as file:
                file.write(f"rank {rank}\n")
            return {"values": np.arange(4, dtype=np.float32)}

        def rest(job):
            with job.stage("trees") as part:
                return {"sum": part.kept("tree", make)["values"].sum()[None]}

        job = Job(tmp_path / "work", identity="mine")
        assert job.kept("tree", make)["values"].tolist() == [0, 1, 2, 3]
        assert job.alone(rest)["sum"].tolist() == [6]
        together = job.each("part", [0, 1], lambda _shared, _job, keys: {key: make() for key in keys})
        assert list(together) == [0, 1]
        (tmp_path / f"rank{rank}").write_text(job.fingerprint())

        def fails(_job):
            raise ConfigError("a mistake")

        try:
            job.alone(fails)
        except Exception as error:
            (tmp_path / f"error{rank}").write_text(str(error))

    for attempt, lines in enumerate((["rank 0"] * 4 + ["rank 1"] * 2, [])):
        codes, printed = run_ranks(program)
        assert codes == [0, 0], printed
        before = [] if attempt == 0 else ["rank 0"] * 4 + ["rank 1"] * 2
        assert sorted((tmp_path / "made").read_text().split("\n")[:-1]) == sorted(before + lines)
    assert (tmp_path / "rank0").read_text() == (tmp_path / "rank1").read_text()
    assert (tmp_path / "error0").read_text() == "a mistake"
    assert "rank 0 has failed" in (tmp_path / "error1").read_text()
