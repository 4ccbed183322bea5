"""The verdict on what was observed, its reason, and the lines to add."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import stoker.checkpoint
from stoker.client.api.reading import Point
from stoker.client.certify import code
from stoker.client.certify import evidence as kept
from stoker.client.certify.code import CodeLine, Trait, look
from stoker.client.certify.evidence import (
    AttemptTrace,
    Evidence,
    Moment,
    Pace,
    Series,
    Trace,
    reported_series,
    sooner,
    told_steps,
    unseeded,
    wanted,
)
from stoker.client.certify.files import FileChange, FileFault
from stoker.client.certify.verdict import (
    Grade,
    Verdict,
    all_resumes,
    control_differs,
    differs,
    judge,
    starts_over,
    telling_evictions,
)
from stoker.model.snapshot import Entry

STEPS = 40
FILES = {"weights.json": "a"}


def loss(step: int) -> float:
    return 1.0 / step


def series(steps: Iterable[int], value: Callable[[int], float] = loss) -> Series:
    return tuple((float(step), value(step)) for step in steps)


def attempt(first: int, last: int, value: Callable[[int], float] = loss, **facts: Any) -> AttemptTrace:
    known: dict[str, Any] = {"series": {"loss": series(range(first, last + 1), value)}, "ran_s": 1.0}
    return AttemptTrace(**(known | facts))


def evicted(first: int, last: int, **facts: Any) -> AttemptTrace:
    return attempt(first, last, **({"evicted": True, "notice_s": 1.0} | facts))


def resumed(first: int, last: int = STEPS, **facts: Any) -> AttemptTrace:
    return attempt(first, last, **({"restored": True, "restored_step": first - 1.0} | facts))


def trace(*attempts: AttemptTrace, run: str = "t-2", **facts: Any) -> Trace:
    known: dict[str, Any] = {"run": run, "attempts": attempts, "files": FILES, "took_s": 3.0}
    return Trace(**(known | facts))


def evidence(*attempts: AttemptTrace, **facts: Any) -> Evidence:
    plain = trace(attempt(1, STEPS), run="t-1")
    told = {"disturbed": (trace(*attempts),), "saved": ("checkpoints/state.json",)} if attempts else {}
    return Evidence(**({"undisturbed": plain} | told | facts))


def differing(from_step: int, by: float = 0.5) -> Callable[[int], float]:
    return lambda step: loss(step) + (by if step >= from_step else 0.0)


def with_control(seen: Evidence) -> Evidence:
    return replace(seen, control=replace(seen.undisturbed, run="t-3"))


def coded(seen: Evidence, *traits: Trait) -> Evidence:
    return replace(seen, code=tuple(CodeLine(trait, "train.py", 7, f"# {trait}") for trait in traits))


def check(verdict: Verdict, grade: Grade, *words: str) -> None:
    said = "\n".join([verdict.reason, *verdict.details, verdict.advice, *verdict.lines])
    assert verdict.grade is grade, said
    assert [one for one in words if one not in said] == [], said


# exact


def test_the_same_steps_values_and_files_are_exact() -> None:
    verdict = judge(evidence(evicted(1, 20), resumed(21)))
    check(verdict, Grade.EXACT, "after 1 eviction everything equals the undisturbed run", "no step was repeated")


def test_evictions_after_the_last_step_prove_nothing() -> None:
    done = AttemptTrace(restored=True, restored_step=STEPS, ran_s=0.1)
    assert not evidence(evicted(1, STEPS), done).restored, "nothing was left to resume"
    verdict = judge(evidence(evicted(1, 20), replace(resumed(21), evicted=True), done))
    check(verdict, Grade.EXACT, "after 1 eviction everything equals the undisturbed run")


def test_an_eviction_that_came_too_late_is_repeated_sooner_then_without_notice() -> None:
    planned = (Moment(2.0, 1.0, 0.5), Moment(1.0, 0.0))
    assert sooner(planned, 0) == planned
    assert sooner(planned, 1) == (Moment(1.0, 1.0, 0.25, hurried=True), Moment(0.5, 0.0, hurried=True))
    assert sooner(planned, 2) == (Moment(2.0, 0.0, 0.5, hurried=True), Moment(1.0, 0.0, hurried=True))


def test_work_done_twice_is_counted_and_is_still_exact() -> None:
    seen = evidence(evicted(1, 20), resumed(16, 30, evicted=True, restored_step=18.0), resumed(28, restored_step=27.0))
    verdict = judge(seen)
    check(
        verdict,
        Grade.EXACT,
        "8 steps were repeated, on average 4.0 of 40 per eviction",
        "3 of them were reported but not",
    )
    assert [one.repeated for one in all_resumes(seen)] == [5, 3]


def test_an_eviction_before_the_first_checkpoint_is_no_fault_of_the_script() -> None:
    seen = evidence(evicted(1, 5, notice_s=0.0), attempt(1, 20, evicted=True), resumed(18))
    check(judge(seen), Grade.EXACT, "8 steps were repeated")


def test_an_attempt_evicted_before_its_first_step_repeats_nothing() -> None:
    seen = evidence(evicted(1, 20), resumed(21, 20, evicted=True), resumed(21))
    check(judge(seen), Grade.EXACT, "no step was repeated")
    assert [one.went_on for one in all_resumes(seen)] == [None, 21.0]


def test_times_and_speeds_are_not_compared() -> None:
    def timed(one: AttemptTrace, seconds: float) -> AttemptTrace:
        return replace(
            one, series={**one.series, "epoch_time": ((1.0, seconds),), "samples_per_second": ((1.0, seconds),)}
        )

    plain = trace(timed(attempt(1, STEPS), 1.0), run="t-1")
    seen = evidence(timed(evicted(1, 20), 2.0), timed(resumed(21), 3.0), undisturbed=plain)
    check(judge(seen), Grade.EXACT)


def test_a_script_without_metrics_is_judged_by_its_files() -> None:
    plain = trace(AttemptTrace(ran_s=3.0), run="t-1")
    first, second = AttemptTrace(ran_s=1.5, evicted=True), AttemptTrace(ran_s=1.6, restored=True, saved=True)
    check(judge(evidence(first, second, undisturbed=plain)), Grade.EXACT, "reports no steps")


def test_without_steps_an_attempt_that_saves_nothing_new_had_nothing_left_to_do() -> None:
    plain = trace(AttemptTrace(ran_s=3.0, saved=True), run="t-1")
    first, second = AttemptTrace(ran_s=1.5, evicted=True, saved=True), AttemptTrace(ran_s=1.6, restored=True)
    seen = evidence(first, second, undisturbed=plain)
    assert (telling_evictions(seen), seen.restored) == (0, False)
    assert judge(seen).grade is Grade.UNDECIDED
    third = AttemptTrace(ran_s=1.0, restored=True, saved=True)
    assert telling_evictions(evidence(first, replace(second, evicted=True), third, undisturbed=plain)) == 2


def test_a_value_that_is_not_a_number_is_the_same_as_itself() -> None:
    nothing = AttemptTrace(series={"loss": ((1.0, None), (2.0, 1.0))})
    plain = trace(nothing, run="t-1")
    seen = evidence(replace(nothing, evicted=True), replace(nothing, restored=True), undisturbed=plain)
    assert not differs(seen)


# lossy


def test_a_script_that_saves_and_never_loads_starts_over() -> None:
    seen = evidence(evicted(1, 20), attempt(1, STEPS, restored=True, restored_step=18.0))
    check(
        judge(seen),
        Grade.LOSSY,
        "the script starts at step 1 after every eviction: it saves to `checkpoints/` but does not load",
        "20 steps were repeated",
        'if os.path.exists("checkpoints/state.json"):',
    )


def test_a_script_that_ignores_its_checkpoint_unless_told_is_told_how() -> None:
    seen = evidence(evicted(1, 20), attempt(1, STEPS, restored=True, restored_step=18.0))
    check(
        judge(replace(seen, resume="--resume ${checkpoint.newest}")),
        Grade.LOSSY,
        "the script starts at step 1 after every eviction and ignores its checkpoint: it requires a flag to resume",
        "resume: --resume ${checkpoint.newest}",
    )


def test_a_script_that_starts_over_only_sometimes_is_told_so() -> None:
    seen = evidence(evicted(1, 20), resumed(20, 30, evicted=True), attempt(1, STEPS, restored=True, restored_step=29.0))
    check(judge(seen), Grade.LOSSY, "after 1 of 2 evictions, although a checkpoint was restored")


def test_nothing_saved_is_reported_with_the_lines_to_save_and_load() -> None:
    seen = evidence(evicted(1, 20), attempt(1, STEPS), saved=())
    check(judge(seen), Grade.LOSSY, "nothing was ever written to `checkpoints/`", "os.replace(", "json.loads(")


def test_the_lines_to_add_are_those_of_the_framework() -> None:
    seen = coded(evidence(evicted(1, 20), attempt(1, STEPS), saved=()), Trait.TORCH)
    check(judge(seen), Grade.LOSSY, 'torch.save(state, "checkpoints/last.pt.part")', "weights_only=True")


def test_a_store_elsewhere_leaves_it_to_time_to_tell_that_nothing_is_saved() -> None:
    long = evidence(evicted(1, 20, ran_s=60.0), attempt(1, STEPS), saved=None)
    check(judge(long), Grade.LOSSY, "nothing was ever written")
    short = evidence(evicted(1, 20, ran_s=2.0), attempt(1, STEPS), saved=None)
    check(judge(short), Grade.UNDECIDED, "before the first checkpoint")


def test_checkpoints_that_were_never_kept_in_time_decide_nothing() -> None:
    check(judge(evidence(evicted(1, 20), attempt(1, STEPS))), Grade.UNDECIDED, "before the first checkpoint")


def test_going_back_far_at_every_eviction_is_saving_too_rarely() -> None:
    seen = evidence(evicted(1, 30), resumed(11, restored_step=30.0))
    check(judge(seen), Grade.LOSSY, "repeats up to 20 of 40 steps", "saves too rarely")


def test_without_steps_an_attempt_that_is_as_long_and_prints_as_much_as_the_whole_has_started_over() -> None:
    plain = trace(AttemptTrace(ran_s=3.0, printed=900), run="t-1")
    first = AttemptTrace(ran_s=2.0, evicted=True, saved=True, printed=600)
    for printed, shown, grade in (
        (900, 900, Grade.LOSSY),
        (500, 900, Grade.EXACT),  # its start took so long, as on a busy computer
        (900, 0, Grade.UNDECIDED),  # it prints only at its end, whether it resumed or not
    ):
        second = AttemptTrace(ran_s=3.1, restored=True, saved=True, printed=printed)
        seen = evidence(first, second, undisturbed=plain, pace=Pace(printed=shown))
        assert judge(seen).grade is grade, (printed, shown)


def test_a_script_that_starts_over_wherever_it_has_a_checkpoint_needs_no_more_evictions() -> None:
    assert starts_over(evidence(evicted(1, 20), resumed(1, restored_step=15.0)))
    assert not starts_over(evidence(evicted(1, 20), resumed(16)))
    assert not starts_over(evidence(evicted(1, 3), attempt(1, STEPS))), "there was no checkpoint yet"
    assert starts_over(evidence(evicted(1, 3), attempt(1, STEPS), saved=()))


# a computer that is busy


def test_what_the_time_limit_leaves_unknown_is_undecided_and_named() -> None:
    check(judge(evidence(unfinished="t-2 was still running")), Grade.UNDECIDED, "t-2 was still running")
    differs_ = evidence(evicted(1, 20), resumed(21, value=differing(21)), unfinished="t-3 did not end")
    check(judge(differs_), Grade.UNDECIDED, "whether evictions are the cause: t-3 did not end", "metric loss")
    enough = evidence(evicted(1, 20), resumed(21), unfinished="t-3 was still running")
    check(judge(enough), Grade.EXACT, "after 1 eviction", "fewer evictions than requested: t-3 was still running")


def test_an_attempt_is_evicted_by_its_share_but_with_half_of_what_is_left_still_to_do() -> None:
    usual = Pace(points=40)
    assert wanted(0.3, usual, 0.0) == 0.3
    assert wanted(0.3, usual, 0.8) == pytest.approx(0.1)
    assert wanted(0.1, replace(usual, saved=0.4), 0.0, saved=False) == 0.4
    assert wanted(0.1, replace(usual, saved=0.8), 0.0, saved=False) == 0.5, "the rest must not end before"
    assert wanted(0.3, usual, 1.0) == wanted(0.0, usual, 0.0) == 1 / 40, "never before its first step"


def test_how_long_a_run_may_be_silent_is_a_matter_of_its_own_pace() -> None:
    assert Pace(points=9, gap_s=0.5).quiet_s < 65 < Pace(points=9, gap_s=30.0).quiet_s
    assert [Pace(saved=one).saves_late for one in (None, 0.5, 0.95)] == [True, False, True]
    assert [one.visible for one in (Pace(), Pace(points=1), Pace(printed=1))] == [False, True, True]


# different numbers


def test_the_optimizer_is_suspected_where_the_first_value_is_right_and_the_next_is_not() -> None:
    seen = coded(evidence(evicted(1, 20), resumed(21, value=differing(22))), Trait.MOMENTUM, Trait.SHUFFLES)
    check(
        judge(with_control(seen)),
        Grade.INEXACT,
        "loss is right at the first step after a resume and differs from step 22 on",
        "the optimizer's state (momentum) is probably not saved",
        "train.py:7",
        'velocity = saved["velocity"]',
    )


@pytest.mark.parametrize(
    ("traits", "reason"),
    [
        ((Trait.DRAWS,), "the random state is probably not saved"),
        ((Trait.SHUFFLES,), "the order of the data is probably not saved"),
        ((Trait.DRAWS, Trait.SAVES_DRAWS, Trait.SHUFFLES), "the order of the data is probably not saved"),
        ((Trait.DRAWS, Trait.MOMENTUM), "the random state is probably not saved"),
        ((Trait.MOMENTUM,), "the optimizer's state (momentum) is probably not saved"),
        ((), "the order of the data is probably not saved"),
    ],
)
def test_a_first_value_that_differs_is_put_down_to_what_the_code_has(traits: tuple[Trait, ...], reason: str) -> None:
    seen = coded(evidence(evicted(1, 20), resumed(21, value=differing(21))), *traits)
    check(judge(seen), Grade.INEXACT, "loss differs from step 21 on, the first step after a resume", reason)


def test_what_else_it_could_be_is_reported() -> None:
    seen = coded(evidence(evicted(1, 20), resumed(21, value=differing(21))), Trait.DRAWS, Trait.MOMENTUM)
    check(judge(seen), Grade.INEXACT, "it could also be the optimizer's state")


def test_shuffling_and_dropout_have_one_remedy() -> None:
    seen = coded(evidence(evicted(1, 20), resumed(21, value=differing(21))), Trait.DRAWS, Trait.SHUFFLES, Trait.TORCH)
    check(
        judge(seen), Grade.INEXACT, "both the order of the data and dropout", "torch.get_rng_state()", "torch.randperm("
    )


def test_values_that_part_later_are_reported_with_how_long_they_agreed() -> None:
    seen = coded(evidence(evicted(1, 20), resumed(21, value=differing(31))), Trait.SHUFFLES)
    check(judge(seen), Grade.INEXACT, "loss agrees for 10 steps after a resume and differs from step 31 on")


@pytest.mark.parametrize(
    ("metric", "reason"),
    [("lr", "schedule is not restored"), ("sample_index", "order of the data"), ("dropout_rate", "random state")],
)
def test_the_name_of_a_metric_may_tell_what_it_is_about(metric: str, reason: str) -> None:
    def also(one: AttemptTrace, by: float) -> AttemptTrace:
        steps = [step for step, _ in one.series["loss"]]
        return replace(one, series={metric: tuple((step, (step or 0.0) + by) for step in steps)})

    plain = trace(also(attempt(1, STEPS), 0.0), run="t-1")
    seen = evidence(also(evicted(1, 20), 0.0), also(resumed(21), 7.0), undisturbed=plain)
    check(judge(seen), Grade.INEXACT, reason)


def test_a_script_that_resumes_inexactly_is_not_broken_and_the_distance_is_reported() -> None:
    seen = coded(evidence(evicted(1, 20), resumed(21, value=differing(21))), Trait.DRAWS)
    found = judge(seen)
    assert found.grade is Grade.INEXACT
    assert re.match(r"it resumes, but not exactly: numbers differ by up to \d+\.\d\d%; loss differs from", found.reason)


def test_a_framework_with_a_callback_of_ours_is_advised_to_use_it() -> None:
    for trait, module in (
        (Trait.KERAS, "stoker.checkpoint.keras"),
        (Trait.LIGHTNING, "stoker.checkpoint.lightning"),
        (Trait.HUGGING_FACE, "stoker.checkpoint.huggingface"),
    ):
        seen = coded(evidence(evicted(1, 20), resumed(21, value=differing(21))), Trait.DRAWS, trait)
        assert f"from {module} import StokerCallback" in judge(seen).lines


def test_a_loss_as_at_the_beginning_means_weights_that_were_not_loaded() -> None:
    seen = evidence(evicted(1, 20), resumed(21, value=lambda step: loss(step - 20)))
    check(judge(seen), Grade.BROKEN, "back at its first value (1)", "the weights are probably not loaded")


def test_slight_differences_are_close_with_the_largest_and_where() -> None:
    seen = evidence(evicted(1, 20), resumed(21, value=lambda step: loss(step) * (1 + 1e-6)))
    check(
        judge(seen),
        Grade.CLOSE,
        "reduced precision",
        "metric loss: differs from step 21 on, by up to",
        "step 21",
    )


def test_slight_differences_of_ddp_come_from_the_order_in_which_ranks_add() -> None:
    seen = evidence(evicted(1, 20), resumed(21, value=lambda step: loss(step) * (1 + 1e-6)))
    found = judge(coded(seen, Trait.TORCH, Trait.DDP))
    assert found.grade is Grade.CLOSE and found.lines == code.everything(torch=True)
    plain = replace(seen, exact=False)
    assert judge(coded(plain, Trait.TORCH, Trait.DDP, Trait.SAVES_FILES)).lines[: len(code.hook())] == code.hook()


def test_a_running_average_heals_and_is_close_where_the_files_agree() -> None:
    seen = evidence(evicted(1, 20), resumed(21, value=lambda step: loss(step) + (0.4 if step == 21 else 0.0)))
    check(judge(seen), Grade.CLOSE, "then agrees again: probably a running average")


def test_a_difference_before_any_eviction_comes_from_outside() -> None:
    seen = with_control(evidence(evicted(1, 20, value=differing(5)), resumed(21)))
    check(judge(seen), Grade.BROKEN, "before any eviction")


def test_a_difference_in_a_repeated_step_counts_too() -> None:
    seen = evidence(evicted(1, 30), resumed(21, value=differing(25)))
    check(judge(seen), Grade.INEXACT, "loss agrees for 4 steps after a resume and differs from step 25 on")


def test_steps_that_nobody_did_are_reported() -> None:
    seen = evidence(evicted(1, 20), resumed(24))
    check(judge(seen), Grade.BROKEN, "3 steps of 40 were never reported, the first is step 21")


def test_steps_too_many_are_reported() -> None:
    seen = evidence(evicted(1, 20), resumed(21, STEPS + 2))
    check(judge(seen), Grade.BROKEN, "2 steps that the undisturbed run does not have, the first is step 41")


# files


def changed(fault: FileFault, path: str = "weights.json", **facts: Any) -> tuple[FileChange, ...]:
    return (FileChange(path, fault, "t-2", **facts),)


def test_a_file_that_is_missing_was_written_before_the_eviction() -> None:
    seen = evidence(evicted(1, 20), resumed(21), files=changed(FileFault.MISSING, "epoch-1.png"))
    check(judge(seen), Grade.BROKEN, "`epoch-1.png` is missing", "checkpoints: [checkpoints, outputs]")


def test_a_file_that_differs_while_all_metrics_agree_holds_something_unsaved() -> None:
    seen = evidence(evicted(1, 20), resumed(21), files=changed(FileFault.CONTENT, detail="20 values instead of 40"))
    check(
        judge(seen), Grade.BROKEN, "although every metric agrees", "a history or a best value", "20 values instead of"
    )


def test_numbers_in_a_file_that_differ_slightly_are_close() -> None:
    facts: dict[str, Any] = {"largest": 1e-7, "relative": 1e-6, "where": "layer.weight"}
    seen = evidence(evicted(1, 20), resumed(21), files=changed(FileFault.NUMBERS, **facts))
    check(judge(seen), Grade.CLOSE, "file weights.json: numbers differ by up to 1e-07", "in layer.weight")


def test_a_file_that_differs_in_undisturbed_runs_too_is_left_out() -> None:
    plain = trace(attempt(1, STEPS), run="t-1", files={**FILES, "log.txt": "x"})
    change = changed(FileFault.CONTENT, "log.txt")
    seen = evidence(evicted(1, 20), resumed(21), undisturbed=plain, files=change, control_files=change, control=plain)
    check(judge(seen), Grade.EXACT)


# not deterministic, failed, never evicted


@pytest.mark.parametrize(
    "control",
    [
        {"control": trace(attempt(1, STEPS, differing(1)), run="t-3")},
        {"control": trace(attempt(1, STEPS - 3), run="t-3")},
        {
            "control": trace(attempt(1, STEPS), run="t-3"),
            "control_files": changed(FileFault.NUMBERS, largest=1.0, relative=1.0),
        },
    ],
)
def test_a_script_that_is_never_the_same_cannot_be_certified(control: Mapping[str, Any]) -> None:
    seen = coded(evidence(evicted(1, 20, value=differing(1)), resumed(21), **control), Trait.TORCH)
    check(judge(seen), Grade.UNDECIDED, "not deterministic", "torch.use_deterministic_algorithms(True)")


def failed(last_words: str, **facts: Any) -> Evidence:
    seen = evidence(evicted(1, 20), attempt(21, 20, restored=True))
    run = replace(seen.disturbed[0], succeeded=False, exit_code=1, last_words=last_words, reason="exited with code 1")
    return replace(seen, disturbed=(replace(run, **facts),))


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        "EOFError: Ran out of input",
        "_pickle.UnpicklingError: pickle data was truncated",
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "zipfile.BadZipFile: File is not a zip file",
        "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
    ],
)
def test_a_file_that_was_cut_off_is_recognised_by_what_readers_say(words: str) -> None:
    verdict = judge(failed(f"Traceback (most recent call last):\n{words}\n"))
    check(
        verdict,
        Grade.BROKEN,
        "probably loaded a truncated file",
        "temporary file and rename",
        "os.replace(",
        words,
    )


def test_a_checkpoint_of_another_model_is_recognised() -> None:
    check(judge(failed("RuntimeError: size mismatch for fc.weight")), Grade.BROKEN, "does not match the model")


def test_a_file_that_is_not_restored_is_named() -> None:
    words = "FileNotFoundError: [Errno 2] No such file or directory: 'cache/vocab.txt'"
    check(judge(failed(words)), Grade.BROKEN, "opens `cache/vocab.txt`", "to `checkpoints:`")


def test_a_script_that_minds_what_is_there_is_reported() -> None:
    check(judge(failed("FileExistsError: [Errno 17] File exists: 'checkpoints/a'")), Grade.BROKEN, "exist_ok=True")


def test_any_other_failure_is_reported_in_its_own_words() -> None:
    check(
        judge(failed("ValueError: no such thing\n\n")),
        Grade.BROKEN,
        "fails after 1 eviction: ValueError: no such thing",
    )


def test_a_run_that_never_ends_is_broken() -> None:
    check(judge(failed("", timed_out=True, took_s=99.0)), Grade.BROKEN, "did not finish after 1 eviction", "after 99 s")


def test_a_script_that_fails_undisturbed_is_to_be_mended_first() -> None:
    plain = trace(attempt(1, 3), run="t-1", succeeded=False, reason="the script exited with code 3")
    check(judge(Evidence(plain)), Grade.BROKEN, "fails without any eviction: the script exited with code 3", "t-1")


def test_a_script_that_ends_too_soon_to_be_evicted_decides_nothing() -> None:
    check(judge(evidence(attempt(1, STEPS))), Grade.UNDECIDED, "ended before it could be evicted")


def test_an_eviction_behind_the_last_step_decides_nothing_unless_it_is_repeated() -> None:
    late = evidence(evicted(1, STEPS), AttemptTrace(restored=True))
    check(judge(late), Grade.UNDECIDED, "when the script had done its work")
    check(judge(evidence(evicted(1, 20), resumed(21))), Grade.EXACT)
    assert telling_evictions(evidence(evicted(1, STEPS), resumed(1))) == 1


def test_trouble_of_stokers_own_is_not_held_against_the_script() -> None:
    plain = trace(attempt(1, 3), run="t-1", succeeded=False, exit_code=125, reason="the disk is full")
    check(judge(Evidence(plain)), Grade.UNDECIDED, "the script is not the cause: the disk is full")


def test_a_script_that_fails_now_and_then_by_itself_decides_nothing() -> None:
    seen = with_control(evidence(evicted(1, 20), resumed(21, value=differing(21))))
    assert seen.control
    seen = replace(seen, control=replace(seen.control, succeeded=False, reason="out of luck"))
    check(judge(seen), Grade.UNDECIDED, "sometimes fails without evictions", "out of luck")


def test_nothing_to_compare_is_not_called_exact() -> None:
    plain = trace(AttemptTrace(ran_s=3.0), run="t-1", files={})
    first, second = AttemptTrace(ran_s=1.5, evicted=True), AttemptTrace(ran_s=1.6, restored=True)
    seen = evidence(first, second, undisturbed=plain, disturbed=(trace(first, second, files={}),))
    check(judge(seen), Grade.UNDECIDED, "nothing to compare", "`outputs/`")


def test_a_script_that_is_not_deterministic_is_called_so_also_if_its_evictions_came_too_late() -> None:
    late = evidence(evicted(1, STEPS, value=differing(2)), AttemptTrace(restored=True))
    again = trace(attempt(1, STEPS, value=differing(2, 0.7)), run="t-3")
    check(judge(replace(late, control=again)), Grade.UNDECIDED, "two undisturbed runs differ")


def test_a_result_that_is_never_the_same_leaves_nothing_to_compare() -> None:
    plain = trace(AttemptTrace(ran_s=3.0), run="t-1")
    change = changed(FileFault.CONTENT)
    first, second = AttemptTrace(ran_s=1.5, evicted=True), AttemptTrace(ran_s=1.6, restored=True)
    seen = evidence(first, second, undisturbed=plain, files=change, control=plain, control_files=change)
    check(judge(seen), Grade.UNDECIDED, "nothing to compare")


def test_only_code_that_the_command_reaches_is_looked_at(tmp_path: Path) -> None:
    files = {
        "bench.py": "import random\nrandom.random()\n",
        "lib/__init__.py": "",
        "lib/data.py": "import torch\norder = torch.randperm(3)\n",
        "lib/other.py": "dropout = 0.5\n",
        "train.py": "from lib import data\nimport model\n",
        "model.py": "import torch.nn as nn\nnn.Dropout(0.5)\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = look(tmp_path, files, "python -u train.py --epochs 3")
    assert {(line.trait, line.file, line.line) for line in found if line.trait in (Trait.DRAWS, Trait.SHUFFLES)} == {
        (Trait.SHUFFLES, "lib/data.py", 2),
        (Trait.DRAWS, "model.py", 2),
    }
    as_module = look(tmp_path, files, "python -m train")
    assert as_module == found
    everything = look(tmp_path, files, "make train")
    assert {line.file for line in everything} >= {"bench.py", "lib/other.py"}


@pytest.mark.parametrize(
    "command",
    [
        "bash scripts/go.sh",
        "cd src && python train.py --lr 1",
        "python src/train.py",
        "torchrun --nproc 2 src/train.py",
    ],
)
def test_no_line_of_another_file_is_named_whatever_starts_the_script(tmp_path: Path, command: str) -> None:
    files = {
        "setup.py": "import random\nrandom.random()\n",
        "tests/test_data.py": "import random\nrandom.shuffle([1])\n",
        "scripts/go.sh": "set -e\npython -u src/train.py --epochs 3 && echo done\n",
        "src/train.py": "from models import net\n",
        "src/models/__init__.py": "",
        "src/models/net.py": "from models.layers import Drop\n",
        "src/models/layers.py": "Dropout = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    assert [(line.file, line.line) for line in look(tmp_path, files, command)] == [("src/models/layers.py", 1)]
    assert {line.line for line in look(tmp_path, files, "make train")} == {0}, "which file matters is unknown"


def test_a_line_that_may_be_of_another_file_is_not_named() -> None:
    seen = with_control(evidence(evicted(1, 20), resumed(21, value=differing(21))))
    unsure = replace(seen, code=(CodeLine(Trait.DRAWS, "setup.py", 0, "random.random()"),))
    assert "setup.py" not in "\n".join(judge(unsure).details)
    assert unseeded(unsure.code) == ""


def test_every_name_of_ours_in_an_advice_exists() -> None:
    from stoker.checkpoint import Checkpoint

    shown = "\n".join((*code.everything(torch=True), *code.callback({Trait.KERAS})))
    assert "from stoker.checkpoint import Checkpoint" in shown
    assert set(re.findall(r"Checkpoint\(.*?(\w+)=\"", shown)) <= set(inspect.signature(Checkpoint).parameters)
    for module in ("keras", "lightning", "huggingface"):
        text = Path(stoker.checkpoint.__file__).with_name(f"{module}.py").read_text()
        assert "class StokerCallback" in text


# the hook of `exact: true`


def forgetful(*traits: Trait, **facts: Any) -> Evidence:
    seen = with_control(evidence(evicted(1, 20), resumed(21, value=differing(21)), **facts))
    return coded(seen, Trait.TORCH, Trait.SHUFFLES, Trait.DRAWS, *traits)


def test_a_plain_script_gets_a_hint_about_the_hook_before_any_line_of_code() -> None:
    verdict = judge(forgetful(Trait.SAVES_FILES, exact=False))
    check(verdict, Grade.INEXACT, "the script does not change", "# or in the script:")
    assert verdict.lines[0].startswith("exact: true")


def test_the_hook_is_not_advised_where_it_cannot_help() -> None:
    for seen in (forgetful(exact=False), forgetful(Trait.SAVES_FILES, exact=None)):
        assert not [line for line in judge(seen).lines if "exact: true" in line]


def test_what_the_hook_said_is_repeated_where_it_was_not_enough() -> None:
    seen = forgetful(Trait.SAVES_FILES, exact=True)
    check(judge(seen), Grade.INEXACT, "`exact: true` restored nothing", "without -I or -S")
    words = ("random states are as they were when `a.pt` was saved", "not restored: the JAX key `key`")
    told = replace(seen, disturbed=tuple(replace(one, hook_words=words) for one in seen.disturbed))
    check(judge(told), Grade.INEXACT, "something else is missing", "hook: not restored: the JAX key `key`")
    thread = ("a save in another thread is not consistent with the training",)
    told = replace(seen, disturbed=tuple(replace(one, hook_words=thread) for one in seen.disturbed))
    check(judge(told), Grade.INEXACT, "save in the thread that trains", f"hook: {thread[0]}")


def test_a_run_that_leaves_only_checkpoints_can_be_compared() -> None:
    bare = trace(AttemptTrace(ran_s=3.0), run="t-1", files={})
    check(judge(evidence(undisturbed=bare)), Grade.UNDECIDED, "nothing to compare")
    kept = replace(bare, kept={"last.pt": "a"})
    assert "nothing to compare" not in judge(evidence(undisturbed=kept)).reason


def test_two_undisturbed_runs_that_differ_are_undecided_before_any_eviction() -> None:
    seen = evidence()
    other = replace(seen.undisturbed, run="t-2", attempts=(attempt(1, STEPS, differing(3)),))
    seen = replace(seen, control=other)
    assert control_differs(seen)
    check(judge(seen), Grade.UNDECIDED, "not deterministic")


def test_a_script_without_a_seed_is_named_with_the_line_that_draws() -> None:
    drawn = CodeLine(Trait.SHUFFLES, "train.py", 7, "random.shuffle(x)")
    assert "train.py:7 draws random numbers: `random.shuffle(x)`" in unseeded([drawn])
    assert unseeded([drawn, CodeLine(Trait.SEEDS, "train.py", 1, "random.seed(0)")]) == ""
    assert unseeded([]) == ""


def test_of_checkpoints_what_the_script_wrote_under_the_same_name_is_compared() -> None:
    names = ("last.pt", ".last.pt.stoker-exact", "outputs/a.pt", "checkpoints/step-000000004/model.safetensors")
    found = kept.comparable([Entry(name, sha256="a") for name in names], "outputs")
    assert found == {"last.pt": "a"}
    assert kept.changed({**found, "b.pt": "b", "log.bmp": "c"}, {"last.pt": "x", "c.pt": "b", "log.bmp": "d"}) == [
        "last.pt"
    ]


def test_how_far_a_training_is_said_to_be_at_times_is_not_compared() -> None:
    """`stoker.checkpoint` reports it every five seconds, at any step."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    said = [Point(1, 0, now, step, {"loss": 1 / step}) for step in (1.0, 2.0)]
    said += [Point(1, 1, now, 2.0, {"loss": 3.0}), Point(2, 0, now, 2.0, {"progress": 0.5, "total_steps": 4.0})]
    assert reported_series(said) == {1: {"loss": ((1.0, 1.0), (2.0, 0.5)), "loss of rank 1": ((2.0, 3.0),)}}
    undisturbed = Trace("a-1", (AttemptTrace(reported_series(said[3:]).get(2, {}), 10.0),), FILES)
    disturbed = Trace(
        "a-2", (AttemptTrace(ran_s=6.0, evicted=True), AttemptTrace(ran_s=4.0, restored=True, saved=True)), FILES
    )
    assert judge(Evidence(undisturbed, (disturbed,))).grade is Grade.EXACT


def test_an_attempt_that_takes_as_long_as_the_whole_has_not_started_over_where_it_says_so_itself() -> None:
    """Where a start takes most of the time, as with several ranks on a busy computer."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    said = [Point(1, 0, now, 48.0, {"progress": 0.5}), Point(2, 0, now, 60.0, {"progress": 0.6, "loss": 1.0})]
    assert told_steps([*said, Point(2, 0, now, 70.0, {"progress": 0.7}), Point(3, 0, now, 1.0, {"loss": 1.0})]) == {
        1: 48.0,
        2: 60.0,
    }
    undisturbed = Trace("a-1", (AttemptTrace(ran_s=10.0, printed=99),), FILES)
    for told, grade in ((60.0, Grade.EXACT), (5.0, Grade.LOSSY), (None, Grade.LOSSY)):
        again = AttemptTrace(ran_s=10.0, restored=True, restored_step=48.0, told_step=told, saved=True, printed=99)
        disturbed = Trace("a-2", (AttemptTrace(ran_s=9.0, evicted=True, notice_s=1.0), again), FILES)
        assert judge(Evidence(undisturbed, (disturbed,), pace=Pace(printed=99))).grade is grade, told
