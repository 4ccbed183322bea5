"""Why a resume went wrong, as far as the evidence shows: where numbers diverge, what failed, what was repeated.
Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stoker.client.certify import code
from stoker.client.certify.code import CodeLine, Trait
from stoker.client.certify.evidence import Evidence, Trace
from stoker.client.certify.files import FileChange, FileFault
from stoker.client.certify.replay import MetricDifference, Resume, main_metric

MUCH = 0.2  # share of the training that the script may repeat at an eviction
LONG_ENOUGH_S = 10.0  # a script that has run this long without a checkpoint has saved nothing
MOST_OF_IT = 0.85
ALL_OF_IT = 0.98  # of what is printed: a date or a number may be shorter
ROUNDING = 1e-4  # a first relative difference below this is a rounding difference

_CUT_OFF = re.compile(
    r"PytorchStreamReader|EOFError|UnpicklingError|JSONDecodeError|BadZipFile|zipfile|Ran out of input|truncated"
    r"|SafetensorError|HeaderTooLarge|InvalidHeader|unable to open file|pickle data was",
    re.IGNORECASE,
)
_OTHER_MODEL = re.compile(r"Missing key\(s\)|Unexpected key\(s\)|size mismatch", re.IGNORECASE)
_NO_FILE = re.compile(r"FileNotFoundError: .*?: '([^']+)'")
_THERE_ALREADY = re.compile(r"FileExistsError: .*?: '([^']+)'")
_RATE = re.compile(r"(^|[_/])(lr|learning_rate)", re.IGNORECASE)
_OF_DATA = re.compile(r"sample|index|batch_id|order|example", re.IGNORECASE)
_BY_HOOK = "add this line to the job file; the script does not change"
_IN_THREAD = "another thread"  # in a message of the hook
_OF_DRAWS = re.compile(r"dropout|noise|mask|draw|augment", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    reason: str
    advice: str = ""
    lines: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    undecided: bool = False


def traits(evidence: Evidence) -> set[Trait]:
    return {line.trait for line in evidence.code}


def of_failure(evidence: Evidence, trace: Trace) -> Diagnosis:
    """Why the script failed after a resume, from its last output."""
    words = trace.last_words
    last = next((line.strip() for line in reversed(words.splitlines()) if line.strip()), "") or trace.reason
    details = (f"exit code {trace.exit_code}, last line: {last[:200]}",)
    folder, torch = evidence.checkpoints, Trait.TORCH in traits(evidence)
    restored = trace.attempts[-1].restored
    if restored and _CUT_OFF.search(words):
        reason = f"it probably loaded a truncated file: the newest one in `{folder}/` was still being written"
        advice = "write to a temporary file and rename it, so that no file is ever incomplete"
        return Diagnosis(reason, advice, code.atomic(folder, torch), details)
    if restored and _OTHER_MODEL.search(words):
        reason = "the checkpoint does not match the model that the script builds"
        advice = "build the model from the same settings before loading; save the settings with the checkpoint"
        return Diagnosis(reason, advice, code.load(folder, torch), details)
    if missing := _NO_FILE.search(words):
        reason = f"it opens `{missing[1]}`, which does not exist after an eviction"
        advice = f"only files in `{folder}/` are restored: write it there, or add its folder to `checkpoints:`"
        return Diagnosis(reason, advice, (f"checkpoints: [{folder}, …]   # in stoker.yaml",), details)
    if there := _THERE_ALREADY.search(words):
        reason = f"it refuses to continue because `{there[1]}` exists"
        return Diagnosis(reason, "continue if the folder exists", ("os.makedirs(path, exist_ok=True)",), details)
    return Diagnosis(last[:200] or "it failed", f"see `stoker logs {trace.run}`", details=details[:1])


def of_loss(evidence: Evidence, resumes: Sequence[Resume], steps: int) -> Diagnosis | None:
    """The result is right, but much work was repeated. None: no more than necessary."""
    folder, torch = evidence.checkpoints, Trait.TORCH in traits(evidence)
    if not evidence.restored:
        return _nothing_kept(evidence, resumes, steps, torch)
    if not steps:
        return _over_by_output(evidence, torch)
    able = [one for one in resumes if one.restored and one.went_on is not None and (one.kept is None or one.by_script)]
    over = [one for one in able if one.started_over]
    if over:
        first = f"step {over[0].went_on:g}" if over[0].went_on is not None else "the beginning"
        every = len(over) == sum(one.restored and one.went_on is not None for one in resumes)
        when = "after every eviction" if every else f"after {len(over)} of {len(resumes)} evictions"
        reason = f"the script starts at {first} {when}: it saves to `{folder}/` but does not load from it"
        if not every:
            reason = f"the script starts at {first} {when}, although a checkpoint was restored"
        if evidence.resume:
            reason = f"the script starts at {first} {when} and ignores its checkpoint: it requires a flag to resume"
            advice = "add this line to the job file: it applies only when a checkpoint was restored"
            return Diagnosis(reason, advice, (f"resume: {evidence.resume}",))
        advice = "load the newest checkpoint before the loop, and start after its step"
        return Diagnosis(reason, advice, code.load(folder, torch))
    own = [one.by_script / steps for one in resumes if one.restored]
    if sum(own) / len(own) > MUCH:
        most = max(one.by_script for one in resumes)
        reason = f"the script repeats up to {most} of {steps} steps after an eviction: it saves too rarely"
        advice = "save more often, and on an eviction notice; otherwise an epoch is repeated from its first batch"
        return Diagnosis(reason, advice, code.everything(torch) or code.save(folder, torch))
    return None


def of_difference(
    evidence: Evidence, metrics: Sequence[MetricDifference], files: Sequence[FileChange], gaps: Sequence[str]
) -> Diagnosis:
    """Why the numbers differ."""
    if metrics:
        return _of_metric(evidence, _telling(evidence, metrics))
    if gaps:
        reason = f"steps are missing or extra: {gaps[0]}"
        advice = "save the number of the last completed step after that step, and continue with the next"
        return Diagnosis(reason, advice, code.save(evidence.checkpoints, Trait.TORCH in traits(evidence)))
    return _of_files(evidence, files)


def _nothing_kept(evidence: Evidence, resumes: Sequence[Resume], steps: int, torch: bool) -> Diagnosis:
    folder = evidence.checkpoints
    evicted = [one for trace in evidence.disturbed for one in trace.attempts if one.evicted]
    longest = max((one.ran_s for one in evicted), default=0.0)
    lines = (*code.save(folder, torch), *code.load(folder, torch))
    if evidence.saved == () or (evidence.saved is None and longest >= LONG_ENOUGH_S):
        reason = f"nothing was ever written to `{folder}/`: the script starts over at every eviction"
        advice = f"save to `{folder}/` during training, and load from it at the start"
        return Diagnosis(reason, advice, lines)
    reached = [one.reached for one in resumes if not one.too_late and not one.restored and one.reached is not None]
    when = f"at step {max(reached):g} of {steps}" if reached and steps else f"{longest:.1f} s after the script's start"
    reason = f"every eviction that left something to do came before the first checkpoint, the last one {when}"
    advice = "save more often; if it does, train longer or request more evictions"
    return Diagnosis(reason, advice, undecided=True)


def _over_by_output(evidence: Evidence, torch: bool) -> Diagnosis | None:
    """Without steps, an attempt that prints as much as the whole run, and takes as long, has probably started over.
    Time alone proves nothing: on a busy computer a start may take longer than the training."""
    usual = evidence.undisturbed
    printed = sum(one.printed for one in usual.attempts)
    for trace in evidence.disturbed:
        *before, last = trace.attempts
        if last.told_step is not None and last.told_step > (last.restored_step or 0.0) > 0:
            continue  # it reported that it resumed; its start took so long
        long = last.ran_s >= MOST_OF_IT * usual.ran_s and sum(one.ran_s for one in before) >= usual.ran_s / 2
        if not last.restored or not long or last.printed < ALL_OF_IT * printed:
            continue
        took = f"its last attempt took {last.ran_s:.1f} s, as long as the whole run"
        if not evidence.pace.printed:
            reason = f"the result is right, but it is unknown whether the script starts over: {took}"
            return Diagnosis(reason, "print steps as JSON lines, and run `stoker certify` again", undecided=True)
        reason = f"the script probably starts over: {took}, and printed as much"
        advice = "load the newest checkpoint before the loop; print steps as JSON for more detail"
        return Diagnosis(reason, advice, code.load(evidence.checkpoints, torch))
    return None


def _telling(evidence: Evidence, metrics: Sequence[MetricDifference]) -> MetricDifference:
    """The learning rate if it differs; else what differs first, the most frequent metric before others."""
    first_run = [one for one in metrics if one.run == metrics[0].run]
    rates = [one for one in first_run if _RATE.search(one.metric)]
    main = main_metric(evidence.undisturbed)
    return min(rates or first_run, key=lambda one: (one.attempt, one.metric != main, one.agreed))


def _of_metric(evidence: Evidence, one: MetricDifference) -> Diagnosis:
    step = f"step {one.step:g}" if one.step is not None else f"its value {one.agreed + 1}"
    has = traits(evidence)
    torch, numpy = Trait.TORCH in has, Trait.NUMPY in has
    if one.attempt == 1:
        reason = f"{one.metric} differs from {step} on, before any eviction: it depends on something outside the script"
        return Diagnosis(reason, "find what it depends on: the time, the run's name, other processes, a cache")
    if one.heals:
        reason = (
            f"{one.metric} differs only right after a resume ({step}), then agrees again: probably a running average"
        )
        return Diagnosis(reason, "save the values that it averages in the checkpoint", code.memory())
    when = _when(one, step)
    if _RATE.search(one.metric):
        reason = f"{when}: the learning-rate schedule is not restored"
        return Diagnosis(reason, "save and load the scheduler", code.schedule_state())
    if began_anew(one):
        reason = f"{when}, and is back at its first value ({one.first:.4g}): the weights are probably not loaded"
        return Diagnosis(reason, "load the weights, not only the step", code.weights(torch))
    if _rounded(one) and Trait.DDP in has:
        return _of_buckets(evidence, f"{when}, slightly")
    if _rounded(one):
        reason = f"{when}, slightly: the state is probably saved with reduced precision"
        return Diagnosis(reason, "save full precision: no rounding, and no half precision in a checkpoint")
    return _of_state(evidence, one, when, torch, numpy)


def _of_buckets(evidence: Evidence, what: str) -> Diagnosis:
    """See `docs/concepts/exact-resume.md`."""
    reason = f"{what}: `DistributedDataParallel` probably adds gradients in another order after a restart"
    found = Diagnosis(reason, "save with `stoker.checkpoint`, which restores that order", code.everything(torch=True))
    if evidence.exact is False and Trait.SAVES_FILES in traits(evidence):
        return replace(found, advice=_BY_HOOK, lines=(*code.hook(), *_or_in_code(evidence, found)))
    return found


def _of_state(evidence: Evidence, one: MetricDifference, when: str, torch: bool, numpy: bool) -> Diagnosis:
    """Which part of the state is missing: by where the numbers diverge, and by what the code uses."""
    draws = Diagnosis(
        f"{when}: the random state is probably not saved, so dropout or other random draws differ",
        "save and restore the random states",
        code.random_state(torch, numpy),
    )
    order = Diagnosis(
        f"{when}: the order of the data is probably not saved, so other samples follow",
        "derive the order from the epoch, and continue after the samples already seen",
        code.data_order(torch),
    )
    momentum = Diagnosis(
        f"{when}: the weights were loaded, but the optimizer's state (momentum) is probably not saved",
        "save and load the optimizer's state, too",
        code.optimizer_state(torch),
    )
    known = {Trait.DRAWS: draws, Trait.SHUFFLES: order, Trait.MOMENTUM: momentum}
    if _OF_DATA.search(one.metric):
        suspects = [Trait.SHUFFLES]
    elif _OF_DRAWS.search(one.metric):
        suspects = [Trait.DRAWS]
    elif one.agreed == 0:
        suspects = [Trait.SHUFFLES, Trait.DRAWS, Trait.MOMENTUM]
    elif one.agreed == 1:
        suspects = [Trait.MOMENTUM, Trait.SHUFFLES, Trait.DRAWS]
    else:
        suspects = [Trait.SHUFFLES, Trait.DRAWS]
    if one.agreed == 1 and Trait.MOMENTUM in _possible(evidence, suspects):
        return _pointed(evidence, known[Trait.MOMENTUM], Trait.MOMENTUM)
    possible = _possible(evidence, suspects)
    if Trait.SHUFFLES in possible and Trait.DRAWS in possible:
        return _pointed(evidence, _both(when, torch, numpy), Trait.SHUFFLES)
    first = possible[0] if possible else suspects[0]
    others = [_SHORT[trait] for trait in (possible[1:] if possible else suspects[1:])]
    also = (f"it could also be {' or '.join(others)}",) if others else ()
    return _pointed(evidence, known[first], first, also)


def _both(when: str, torch: bool, numpy: bool) -> Diagnosis:
    """Dropout and shuffling usually draw from the same generator, and one remedy fixes both."""
    return Diagnosis(
        f"{when}: the random state is probably not saved, on which both the order of the data and dropout or other "
        "draws depend",
        "save and restore the random states; a script that saves within an epoch also needs its order and position",
        (*code.random_state(torch, numpy), "", *code.data_order(torch)),
    )


_SHORT = {
    Trait.DRAWS: "the random state (dropout, augmentation)",
    Trait.SHUFFLES: "the order of the data",
    Trait.MOMENTUM: "the optimizer's state",
}
_SAVED = {Trait.DRAWS: Trait.SAVES_DRAWS, Trait.MOMENTUM: Trait.SAVES_MOMENTUM}


def _possible(evidence: Evidence, suspects: Sequence[Trait]) -> list[Trait]:
    """Those that the code uses, and apparently does not save."""
    has = traits(evidence)
    return [trait for trait in suspects if trait in has and _SAVED.get(trait) not in has]


def _pointed(evidence: Evidence, found: Diagnosis, trait: Trait, also: tuple[str, ...] = ()) -> Diagnosis:
    """With the line of the script that it concerns. A framework's own callback saves more than any single line."""
    line: CodeLine | None = next((line for line in evidence.code if line.trait is trait and line.line), None)
    at = (f"code {line}",) if line else ()
    if trait in (Trait.SHUFFLES, Trait.DRAWS):
        if evidence.exact:
            return _despite_hook(evidence, found, (*at, *also))
        if evidence.exact is False and Trait.SAVES_FILES in traits(evidence):
            return Diagnosis(found.reason, _BY_HOOK, (*code.hook(), *_or_in_code(evidence, found)), (*at, *also))
    if ours := code.callback(traits(evidence)):
        return Diagnosis(found.reason, "let Stoker's callback save and restore all state", ours, (*at, *also))
    return Diagnosis(found.reason, found.advice, found.lines, (*at, *also))


def _or_in_code(evidence: Evidence, found: Diagnosis) -> tuple[str, ...]:
    """The same in the script."""
    return ("", "# or in the script:", *(code.callback(traits(evidence)) or found.lines))


def _despite_hook(evidence: Evidence, found: Diagnosis, details: tuple[str, ...]) -> Diagnosis:
    """It differs although the hook is active: the hook's messages say why."""
    said = list(dict.fromkeys(words for trace in evidence.disturbed for words in trace.hook_words))
    if not any(words.startswith("random states are as they were") for words in said):
        reason = f"{found.reason}; `exact: true` restored nothing"
        advice = (
            "save with `torch.save`, Keras, Lightning, `joblib`, `pickle` or NumPy, and start Python without -I or -S"
        )
        if any(_IN_THREAD in words for words in said):
            advice = "save in the thread that trains, or save the random states yourself"
        return Diagnosis(reason, advice, found.lines, (*details, *(f"hook: {words}" for words in said)))
    reason = f"{found.reason}; `exact: true` restored the random states, so something else is missing"
    lines = code.callback(traits(evidence)) or found.lines
    advice = "the hook cannot restore the script's own variables: save them"
    return Diagnosis(reason, advice, lines, (*details, *(f"hook: {words}" for words in said)))


def _when(one: MetricDifference, step: str) -> str:
    if one.agreed == 0:
        return f"{one.metric} differs from {step} on, the first step after a resume"
    if one.agreed == 1:
        return f"{one.metric} is right at the first step after a resume and differs from {step} on, the next one"
    return f"{one.metric} agrees for {one.agreed} steps after a resume and differs from {step} on"


def began_anew(one: MetricDifference) -> bool:
    """The first value after a resume is that of an untrained model, far from what it should be."""
    if one.agreed or one.first is None or one.found is None or one.expected is None:
        return False
    way = abs(one.first - one.expected)
    return way > 0.1 * max(abs(one.first), abs(one.expected)) and abs(one.first - one.found) < 0.1 * way


def _rounded(one: MetricDifference) -> bool:
    if one.expected is None or one.found is None or one.expected == 0:
        return False
    return abs(one.found - one.expected) < ROUNDING * abs(one.expected)


def _of_files(evidence: Evidence, files: Sequence[FileChange]) -> Diagnosis:
    missing = [change for change in files if change.fault is FileFault.MISSING]
    folder, outputs = evidence.checkpoints, evidence.outputs
    if missing:
        reason = (
            f"`{missing[0].path}` is missing: it was written before an eviction and after the last checkpoint, "
            "and the script did not write it again"
        )
        advice = f"write it at the end, or restore `{outputs}`, too"
        return Diagnosis(reason, advice, code.outputs_kept(folder, outputs))
    named = f"`{files[0].path}` differs"
    agree = " although every metric agrees" if main_metric(evidence.undisturbed) else ""
    if files[0].fault is FileFault.NUMBERS and files[0].relative < ROUNDING and Trait.DDP in traits(evidence):
        return _of_buckets(evidence, f"{named}, slightly")
    if files[0].fault is FileFault.NUMBERS:
        reason = f"{named}{agree}: part of its content is probably not in the checkpoint"
    else:
        reason = (
            f"{named}{agree}: values collected in memory, such as a history or a best value, are probably not saved"
        )
    return Diagnosis(reason, "save everything that is written at the end in the checkpoint", code.memory())
