"""Charts of a study show what is in the trials' files: curves, rates, decay, the monitor."""

from __future__ import annotations

import json

import pytest
from drawn import figure_of, line_points, marked_points
from made_up_study import FLOOR, OPTIMISER, add_trial, course, every_verdict, line, optimiser_study, write_results

from labelwise.report.charts import MARKS
from labelwise.report.curves import read_training_curves
from labelwise.report.field_plots import field_charts, lines_over
from labelwise.report.study import study_charts
from labelwise.report.study_files import read_study_folder, shown_value
from labelwise.report.study_plots import chosen_settings, collapse_chart, curve_charts, overview_chart

pytest.importorskip("matplotlib")


def logged(folder, trial):
    return [json.loads(one) for one in (folder / "trials" / trial / "metrics.jsonl").read_text().splitlines()]


def losses_by_epoch(lines):
    """Independently of the code: the mean of both lines of an epoch, weighed by their 30 and 10 steps."""
    found = [entry for entry in lines if "rate" in entry]
    return [(30 * a["loss"] + 10 * b["loss"]) / 40 for a, b in zip(found[::2], found[1::2], strict=True) if a["loss"]]


def test_a_course_has_the_mean_loss_of_each_round():
    lines = course("healthy")
    found = read_training_curves(lines, "P@1")
    assert [at for at, _ in found.loss] == [1, 2, 3, 4, 5]
    assert [loss for _, loss in found.loss] == pytest.approx(losses_by_epoch(lines))
    assert found.metric == [(entry["epoch"], entry["P@1"]) for entry in lines if "P@1" in entry]
    assert found.readings["attention_entropy"] == [(at, pytest.approx(0.65)) for at in (1, 2, 3, 4, 5)]
    assert (found.floor, found.rate, found.reason[:11]) == (FLOOR, 1e-3, "the loss is")


def test_a_course_that_was_taken_up_again_counts_the_later_lines():
    lines = course("healthy", epochs=2)
    wrong = [{**entry, "loss": 99.0, "P@1": 0.99} for entry in lines if entry.get("epoch", 0) > 1]
    assert read_training_curves([*lines[:4], *wrong, *lines[4:]], "P@1") == read_training_curves(lines, "P@1")


def test_a_course_that_ended_earlier_than_before_it_was_taken_up_leaves_out_the_rest():
    lines = course("healthy", epochs=3)
    before, again = lines[:-1], [entry for entry in lines if 1 < entry.get("epoch", 0) <= 2]
    assert read_training_curves([*before, *again], "P@1") == read_training_curves(
        course("healthy", epochs=3)[:7], "P@1"
    )


def test_a_course_without_validation_goes_by_whole_epochs():
    lines = [line(step, step / 4, loss=float(step), rate=0.1) for step in (1, 2, 4, 6, 8, 9)]
    found = read_training_curves(lines, "P@1")
    assert found.loss == [(1.0, (1 + 2 + 2 * 4) / 4), (2.0, (2 * 6 + 2 * 8) / 4), (2.25, 9.0)]
    assert (found.metric, found.readings) == ([], {})


def test_a_course_that_blew_up_has_no_loss_at_its_end():
    found = read_training_curves(course("diverged"), "P@1")
    assert found.final_loss is None
    assert found.loss[0][1] == pytest.approx(0.7 * 10 * (30 * 1.2 + 10 * 0.6) / 40)
    assert read_training_curves([], "P@1").loss == []


def test_learning_curves_are_those_of_the_files(tmp_path):
    folder = every_verdict(tmp_path, inside=False)
    (chart,) = curve_charts(read_study_folder(folder))
    loss, metric = figure_of(chart).axes
    assert loss.get_yscale() == "log"
    names = {"rate 1e-4 (healthy)": "trial3", "rate 0.1 (diverged)": "trial0", "rate 1e-6 (under-trained)": "trial4"}
    for name, trial in names.items():
        lines = logged(folder, trial)
        assert [y for _, y in line_points(loss)[name]] == pytest.approx(losses_by_epoch(lines))
        reached = [100 * entry["P@1"] for entry in lines if "P@1" in entry]
        assert line_points(metric)[name] == [(at, pytest.approx(y)) for at, y in enumerate(reached, start=1)]
    assert line_points(loss)["floor"][0][1] == pytest.approx(FLOOR)
    assert "rate 0.1 (diverged): training loss from 7.35 to not a number" in chart.description


def test_points_by_rate_carry_their_verdicts(tmp_path):
    folder = every_verdict(tmp_path, inside=False)
    (chart,) = field_charts(read_study_folder(folder))
    assert (chart.name, chart.title) == ("by-rate", "Final training loss and best P@1 by rate")
    loss, metric = figure_of(chart).axes
    assert (loss.get_xscale(), loss.get_yscale()) == ("log", "log")
    wanted = {("^", 0.1, 1.0)}  # no number: at the upper edge
    for shape, rate, trial in (("X", 0.01, 1), ("s", 1e-3, 2), ("o", 1e-4, 3), ("v", 1e-6, 4)):
        wanted.add((shape, rate, round(losses_by_epoch(logged(folder, f"trial{trial}"))[-1], 6)))
    assert marked_points(loss) == wanted
    best = {(shape, rate): height for shape, rate, height in marked_points(metric)}
    assert best["o", 1e-4] == pytest.approx(100 * 0.8 * (1 - 0.3**5), abs=1e-5)
    assert len(best) == 5
    assert [tick.get_text() for tick in metric.get_xticklabels()] == ["1e-6", "1e-4", "1e-3", "0.01", "0.1"]
    texts = [text.get_text() for text in figure_of(chart).legends[0].get_texts()]
    assert texts == ["healthy", "on the plateau", "under-trained", "collapsed", "diverged"]
    assert "rate 0.01: loss 0.009" in chart.description


def test_every_verdict_has_a_shape_and_a_colour_of_its_own():
    assert len({shape for shape, _ in MARKS.values()}) == len({colour for _, colour in MARKS.values()}) == len(MARKS)


def test_multiples_of_default_rates_become_rates(tmp_path):
    study = read_study_folder(optimiser_study(tmp_path, seeds=(0,)))
    assert list(study.fields.values()) == ["optimiser", "rate", "weight_decay"]
    rates = {s.values[f"{OPTIMISER}.rate_factor"] for s in study.settings if s.values[f"{OPTIMISER}.name"] == "adagrad"}
    assert rates == {0.1, 0.01, 1e-3, 1e-4, 1e-5}
    assert len(study.settings) == 21
    assert len(study.distinct) == 19, "two settings stand in two groups"


def test_settings_are_called_by_what_their_group_varies(tmp_path):
    configs = {
        "a": {"rate": 0.01, "name": "adamw", "decay": 0.0},
        "b": {"rate": 0.1, "name": "adamw", "decay": 0.0},
        "c": {"rate": 0.01, "name": "adam", "decay": 0.5},
        "d": {"rate": 0.01, "name": "adamw", "decay": 0.7},
    }
    given = [
        ("rate", "a", ("rate",)),
        ("rate", "b", ("rate",)),
        ("decay", "c", ("name", "decay")),
        ("x", "d", ("rate",)),
    ]
    settings = []
    for group, name, varied in given:
        add_trial(tmp_path, name, {f"model.{key}": value for key, value in configs[name].items()}, course("healthy"))
        values = {f"model.{key}": configs[name][key] if key in varied else None for key in ("rate", "name", "decay")}
        settings.append((group, values, {name: {"value": 0.5, "verdict": "healthy"}}))
    write_results(tmp_path, "P@1", settings)
    labels = [setting.label for setting in read_study_folder(tmp_path).settings]
    assert labels == ["rate 0.01, adamw, decay 0", "rate 0.1", "adam, decay 0.5", "rate 0.01, adamw, decay 0.7"]


def test_an_optimiser_study_compares_rates_and_decays(tmp_path):
    study = read_study_folder(optimiser_study(tmp_path))
    rate, decay = field_charts(study)
    assert (rate.name, decay.name) == ("by-rate", "by-weight-decay")
    lines = {one.label: one.settings for one in lines_over(study, f"{OPTIMISER}.rate_factor")}
    assert {label: len(own) for label, own in lines.items()} == {
        "adam, weight decay 0": 5, "adamw, weight decay 0.01": 5, "adagrad": 5, "adam, weight decay 0.01": 1,
        "adam, weight decay 0.1": 1, "adamw, weight decay 0": 1, "adamw, weight decay 0.1": 1,
    }  # fmt: skip
    _, metric = figure_of(decay).axes
    points = line_points(metric)
    assert set(points) == {"adam, rate 1e-4", "adamw, rate 1e-4"}
    best = {seed: 100 * (0.75 + 0.02 * seed) * (1 - 0.3**5) for seed in (0, 1)}
    assert [x for x, _ in points["adam, rate 1e-4"]] == [0, 1, 2], "0, 0.01 and 0.1 stand side by side"
    assert [y for _, y in points["adam, rate 1e-4"]] == pytest.approx([sum(best.values()) / 2, 5.92, 5.92])
    assert [tick.get_text() for tick in metric.get_xticklabels()] == ["0", "0.01", "0.1"]


def test_many_settings_are_shown_by_the_best_of_each_kind_and_verdict(tmp_path):
    study = read_study_folder(optimiser_study(tmp_path, seeds=(0,)))
    chosen = chosen_settings(study)
    assert len(chosen) <= 8
    assert {setting.verdict for setting in chosen} == {s.verdict for s in study.settings}
    assert {s.values[f"{OPTIMISER}.name"] for s in chosen} == {"adam", "adamw", "adagrad"}
    assert [chart.name for chart in curve_charts(study)] == ["curves", "curves-adam", "curves-adamw", "curves-adagrad"]


def test_seeds_are_a_mean_and_a_band(tmp_path):
    study = read_study_folder(optimiser_study(tmp_path))
    chart = curve_charts(study)[0]
    _, metric = figure_of(chart).axes
    best = next(label for label in line_points(metric) if label.startswith("adamw, rate 1e-4, weight decay 0.01"))
    assert line_points(metric)[best][-1] == (5.0, pytest.approx(100 * 0.77 * (1 - 0.3**5)))
    (band, *_) = [one.get_paths()[0].vertices for one in metric.collections]
    assert (min(band[:, 1]), max(band[:, 1])) == (
        pytest.approx(100 * 0.76 * 0.7),
        pytest.approx(100 * 0.78 * (1 - 0.3**5)),
    )


def test_the_monitor_is_drawn_from_its_readings(tmp_path):
    folder = every_verdict(tmp_path, inside=False)
    chart = collapse_chart(read_study_folder(folder))
    assert chart is not None
    axes = {one.get_title("left"): one for one in figure_of(chart).axes}
    ratio, distance, rank, same, different, entropy = axes.values()
    assert [title for title in axes][2:] == [
        "effective rank", "same first label, %", "different first labels", "attention entropy",
    ]  # fmt: skip
    collapsed, healthy = "rate 0.01 (collapsed)", "rate 1e-4 (healthy)"
    seen = [entry for entry in logged(folder, "trial1") if "probe_loss" in entry]
    assert [y for _, y in line_points(ratio)[collapsed]] == pytest.approx([e["probe_loss"] / FLOOR for e in seen])
    assert [y for _, y in line_points(distance)[collapsed]] == pytest.approx([1e-7] * 5, rel=1e-3)
    assert [y for _, y in line_points(rank)[healthy]] == pytest.approx([16, 22, 28, 34, 40])
    assert [y for _, y in line_points(same)[collapsed]] == [100] * 5
    assert [y for _, y in line_points(different)[healthy]] == [21, 22, 23, 24, 25]
    assert [y for _, y in line_points(entropy)[collapsed]] == pytest.approx([0.8] * 5)
    assert len(line_points(rank)["rate 0.1 (diverged)"]) == 4, "the last reading of a diverged training has none"


# --- other studies ------------------------------------------------------------------------------------


def plain_study(folder, settings, metric="P@1"):
    """A study of a method without steps: values and scores."""
    rows = []
    for place, (values, score) in enumerate(settings):
        add_trial(folder, f"t{place}", values, [{"time": 1.0, "stage": "fit", "seconds": 2.0, "done": True}])
        rows.append(("", values, {f"t{place}": {"status": "finished", "value": score, "seconds": 2.0}}))
    return read_study_folder(write_results(folder, metric, rows))


def test_a_study_without_steps_has_its_metric_alone(tmp_path):
    grid = [({"model.leaf_size": size, "model.solver.loss": loss}, 0.5 + size / 1000 + 0.1 * (loss == "hinge"))
            for size in (50, 100, 200) for loss in ("hinge", "squared_hinge")]  # fmt: skip
    study = plain_study(tmp_path, grid, metric="PSP@5")
    charts = study_charts(study)
    assert list(charts) == ["settings", "by-leaf-size"]
    (axes,) = figure_of(charts["by-leaf-size"]).axes
    assert axes.get_ylabel() == "best PSP@5, %"
    assert line_points(axes)["hinge"] == [(50, 65.0), (100, pytest.approx(70.0)), (200, pytest.approx(80.0))]
    assert line_points(axes)["squared_hinge"][0] == (50, pytest.approx(55.0))
    assert axes.get_xscale() == "linear"
    (axes,) = figure_of(charts["settings"]).axes
    assert next(tick.get_text() for tick in axes.get_yticklabels()) == "leaf size 200, hinge"
    assert {height for _, _, height in marked_points(axes)} == set(range(6))


def test_a_random_search_is_loose_points(tmp_path):
    draws = [({"model.a": 0.1 * k, "model.b": 10.0**-k}, 0.1 * k) for k in range(1, 7)]
    study = plain_study(tmp_path, draws)
    charts = {chart.name: chart for chart in field_charts(study)}
    assert set(charts) == {"by-a", "by-b"}
    (axes,) = figure_of(charts["by-b"]).axes
    assert axes.get_xscale() == "log"
    assert {(x, y) for _, x, y in marked_points(axes)} == {(10.0**-k, round(10.0 * k, 6)) for k in range(1, 7)}
    assert all(one.get_linestyle() == "None" for one in axes.get_lines())


def test_words_alone_make_no_axis(tmp_path):
    study = plain_study(tmp_path, [({"model.loss": "a"}, 0.1), ({"model.loss": "b"}, 0.2), ({"model.loss": True}, 0.3)])
    assert list(study_charts(study)) == ["settings"]
    assert [setting.label for setting in study.settings] == ["a", "b", "loss true"]


def test_one_trial_needs_no_comparison(tmp_path):
    study = plain_study(tmp_path, [({"model.loss": "a"}, 0.1)])
    assert study_charts(study) == {}
    assert overview_chart(study) is None
    assert study.settings[0].label == "setting"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1e-4, "1e-4"), (0.001, "1e-3"), (0.01, "0.01"), (2.5e-5, "2.5e-5"), (0, "0"), (100, "100"), (1e6, "1e6"),
     (True, "true"), ("adam", "adam"), (None, "null"), ([1, 2], "[1, 2]")],
)  # fmt: skip
def test_values_as_they_are_read(value, shown):
    assert shown_value(value) == shown
