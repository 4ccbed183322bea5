"""The verdict of a certification: one word, the reason, and what to add. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stoker.client.certify import code, diagnosis
from stoker.client.certify.code import Trait
from stoker.client.certify.evidence import Evidence, Trace
from stoker.client.certify.files import FileChange, FileFault
from stoker.client.certify.replay import MetricDifference, Resume, differences, main_metric, replay, resumes, whole

OWN_TROUBLE = 125  # the exit code of runs that Stoker itself could not run
SLIGHT = 0.01  # of the largest value: differences up to this are `close`


class Grade(StrEnum):
    EXACT = "exact"
    CLOSE = "close"
    INEXACT = "inexact"  # it resumes, and ends with different numbers
    LOSSY = "lossy"
    BROKEN = "broken"
    UNDECIDED = "undecided"  # not deterministic, never evicted, or nothing to compare


@dataclass(frozen=True, slots=True)
class Verdict:
    grade: Grade
    reason: str
    details: tuple[str, ...] = ()
    advice: str = ""  # what to do
    lines: tuple[str, ...] = ()  # to add


def judge(evidence: Evidence) -> Verdict:
    """The first check with a result decides."""
    for look in (_unable, _failed, _unsteady, _different, _lossy):
        if verdict := look(evidence):
            return verdict
    return _exact(evidence)


def differs(evidence: Evidence) -> bool:
    """Something differs from the undisturbed run, so a second undisturbed run is worth its time."""
    plain = evidence.undisturbed
    return bool(evidence.files) or any(_metrics(evidence, trace) or _gaps(plain, trace) for trace in evidence.disturbed)


def is_comparable(evidence: Evidence) -> bool:
    """The undisturbed run has produced something to compare."""
    plain = evidence.undisturbed
    return bool(compared_files(evidence) or main_metric(plain) or plain.kept)


def control_differs(evidence: Evidence) -> bool:
    """Two undisturbed runs differ in what is compared."""
    control, plain = evidence.control, evidence.undisturbed
    if control is None or not control.succeeded:
        return control is not None
    numbers = any(change.fault is FileFault.NUMBERS for change in evidence.control_files)
    return bool(differences(plain, control) or _gaps(plain, control) or numbers)


def all_resumes(evidence: Evidence) -> list[Resume]:
    return [one for trace in evidence.disturbed for one in resumes(evidence.undisturbed, trace)]


def telling_evictions(evidence: Evidence) -> int:
    """Those after which the script had something left to do. An eviction behind the last step proves nothing."""
    return evidence.evictions - sum(one.too_late for one in all_resumes(evidence))


def starts_over(evidence: Evidence) -> bool:
    """The fault is obvious: nothing is ever saved, or it began anew wherever it had a checkpoint. More evictions would
    show the same."""
    if evidence.saved == () and telling_evictions(evidence):
        return True
    able = [one for one in all_resumes(evidence) if one.restored and one.went_on is not None]
    return bool(able) and all(one.started_over for one in able)


def compared_files(evidence: Evidence) -> list[str]:
    """Those that are identical in two undisturbed runs, as far as known."""
    unsteady = {change.path for change in evidence.control_files}
    return [path for path in evidence.undisturbed.files if path not in unsteady and "tfevents" not in path]


def _unable(evidence: Evidence) -> Verdict | None:
    plain = evidence.undisturbed
    for trace in (plain, *evidence.disturbed):
        if trace.exit_code == OWN_TROUBLE and not trace.succeeded:
            reason = f"the run could not be executed, and the script is not the cause: {trace.reason}"
            return Verdict(Grade.UNDECIDED, reason, advice=f"see `stoker show {trace.run}` and `stoker doctor`")
    if not plain.succeeded:
        reason = f"the script fails without any eviction: {plain.reason}"
        return Verdict(Grade.BROKEN, reason, advice=f"fix that first: see `stoker logs {plain.run}`")
    if not is_comparable(evidence):
        reason = "nothing to compare: the script reports no metrics and writes no outputs or checkpoints"
        advice = f"print metrics as JSON lines with a step, and write the result to `{evidence.outputs}/`"
        return Verdict(Grade.UNDECIDED, reason, advice=advice)
    undisturbed_only = not evidence.disturbed and evidence.control is not None
    if undisturbed_only or telling_evictions(evidence) or not all(one.succeeded for one in evidence.disturbed):
        return None
    if control_differs(evidence):
        return None
    if evidence.unfinished:
        reason = f"no eviction could be evaluated: {evidence.unfinished}"
        return Verdict(
            Grade.UNDECIDED, reason, advice="repeat it when the computer is less busy, or train for less time"
        )
    if evidence.evictions:
        reason = f"every eviction took effect when the script had done its work: it runs {plain.ran_s:.1f} s"
    else:
        reason = f"the script ended before it could be evicted: it runs only {plain.ran_s:.1f} s"
    return Verdict(Grade.UNDECIDED, reason, advice="train longer, for example with `--set`")


def _failed(evidence: Evidence) -> Verdict | None:
    failed = [trace for trace in evidence.disturbed if not trace.succeeded]
    if not failed:
        return None
    trace = failed[0]
    after = f"after {_times(trace.evictions, 'eviction')}"
    if trace.timed_out:
        usual = f"undisturbed it takes {evidence.undisturbed.took_s:.1f} s"
        reason = f"the run did not finish {after}: it was stopped after {trace.took_s:.0f} s; {usual}"
        return Verdict(Grade.BROKEN, reason, advice=f"see `stoker logs {trace.run}`")
    found = diagnosis.of_failure(evidence, trace)
    reason = f"the script fails {after}: {found.reason}"
    return Verdict(Grade.BROKEN, reason, found.details, found.advice, found.lines)


def _unsteady(evidence: Evidence) -> Verdict | None:
    if evidence.control is None or (evidence.disturbed and not differs(evidence)):
        return None
    if not evidence.control.succeeded:
        reason = (
            f"the script sometimes fails without evictions: its second undisturbed run did ({evidence.control.reason})"
        )
        return Verdict(Grade.UNDECIDED, reason, advice=f"see `stoker logs {evidence.control.run}`")
    metrics = differences(evidence.undisturbed, evidence.control)
    gaps = _gaps(evidence.undisturbed, evidence.control)
    numbers = [change for change in evidence.control_files if change.fault is FileFault.NUMBERS]
    if not (metrics or gaps or numbers):
        return None
    what = [_metric_words(one) for one in metrics[:3]] + [file_words(one) for one in evidence.control_files[:3]]
    what += [gaps] if gaps else []
    has = diagnosis.traits(evidence)
    return Verdict(
        Grade.UNDECIDED,
        "the script is not deterministic: two undisturbed runs differ, so exact resuming cannot be checked",
        tuple(what),
        "first make two undisturbed runs agree: seed every random generator",
        code.determinism(Trait.TORCH in has, Trait.NUMPY in has),
    )


def _different(evidence: Evidence) -> Verdict | None:
    files = _files(evidence)
    metrics = [one for trace in evidence.disturbed for one in _metrics(evidence, trace)]
    gaps = [words for trace in evidence.disturbed if (words := _gaps(evidence.undisturbed, trace))]
    if not (files or metrics or gaps):
        return None
    if evidence.unfinished and evidence.control is None:
        reason = f"something differs, but it is unknown whether evictions are the cause: {evidence.unfinished}"
        what = [_metric_words(one) for one in metrics[:4]] + [file_words(one) for one in files[:4]] + gaps[:2]
        return Verdict(Grade.UNDECIDED, reason, tuple(what), "repeat it when the computer is less busy")
    found = diagnosis.of_difference(evidence, metrics, files, gaps)
    details = [_metric_words(one) for one in metrics[:4]] + [file_words(one) for one in files[:4]] + gaps[:2]
    if work := repeated_words(evidence, cause=False):
        details.append(work)
    grade, reason = Grade.BROKEN, found.reason
    if not gaps and _slight(evidence, metrics, files):
        grade = Grade.CLOSE
    elif not gaps and _resumed(evidence, metrics, files):
        distance = max([one.relative for one in metrics] + [change.relative for change in files])
        grade = Grade.INEXACT
        reason = f"it resumes, but not exactly: numbers differ by up to {distance:.2%}; {reason}"
    return Verdict(grade, reason, (*found.details, *details), found.advice, found.lines)


def _resumed(evidence: Evidence, metrics: list[MetricDifference], files: list[FileChange]) -> bool:
    """It resumed from its checkpoint with its weights, and produced all its files: only numbers differ."""
    if not evidence.restored or any(change.fault is not FileFault.NUMBERS for change in files):
        return False
    return not any(one.attempt == 1 or diagnosis.began_anew(one) for one in metrics)


def _lossy(evidence: Evidence) -> Verdict | None:
    found = diagnosis.of_loss(evidence, all_resumes(evidence), steps(evidence.undisturbed))
    if found is None:
        return None
    details = [*found.details, *filter(None, [repeated_words(evidence, cause=False)])]
    grade = Grade.UNDECIDED if found.undecided else Grade.LOSSY
    return Verdict(grade, found.reason, tuple(details), found.advice, found.lines)


def _exact(evidence: Evidence) -> Verdict:
    reason = f"after {_times(telling_evictions(evidence), 'eviction')} everything equals the undisturbed run"
    details = [repeated_words(evidence) or "no step was repeated"] if steps(evidence.undisturbed) else []
    if not details:
        details.append("the script reports no steps, so repeated work cannot be counted")
    if evidence.unfinished:
        details.append(f"fewer evictions than requested: {evidence.unfinished}")
    return Verdict(Grade.EXACT, reason, tuple(details))


def steps(trace: Trace) -> int:
    return len(whole(trace).get(main_metric(trace), ()))


def repeated_words(evidence: Evidence, *, cause: bool = True) -> str:
    """`12 steps were repeated, on average 2.4 of 40 per eviction; 4 of them …`; empty if none were."""
    found = all_resumes(evidence)
    total = sum(one.repeated for one in found)
    if not total:
        return ""
    share = f"on average {total / len(found):.1f} of {steps(evidence.undisturbed)} per eviction"
    own = sum(one.by_script for one in found)
    why = f"; {own} of them were reported but not saved when the checkpoint was committed" if own and cause else ""
    return f"{_times(total, 'step')} {'was' if total == 1 else 'were'} repeated, {share}{why}"


def file_words(change: FileChange) -> str:
    match change.fault:
        case FileFault.MISSING:
            return f"file {change.path}: missing"
        case FileFault.EXTRA:
            return f"file {change.path}: not in the undisturbed run"
        case FileFault.NUMBERS:
            where = f", in {change.where}" if change.where else ""
            amount = f"{change.largest:.3g} ({change.relative:.2%})"
            return f"file {change.path}: numbers differ by up to {amount}{where}"
        case _:
            return f"file {change.path}: differs{f' ({change.detail})' if change.detail else ''}"


def _metric_words(one: MetricDifference) -> str:
    step = f" from step {one.step:g} on" if one.step is not None else ""
    largest = f"{one.largest:.3g} ({one.relative:.2%})"
    at = f" at step {one.largest_step:g}" if one.largest_step is not None else ""
    return f"metric {one.metric}: differs{step}, by up to {largest}{at}"


def _metrics(evidence: Evidence, trace: Trace) -> list[MetricDifference]:
    return differences(evidence.undisturbed, trace)


def _files(evidence: Evidence) -> list[FileChange]:
    unsteady = {change.path for change in evidence.control_files}
    return [change for change in evidence.files if change.path not in unsteady]


def _gaps(undisturbed: Trace, trace: Trace) -> str:
    """Steps that are missing, or that the undisturbed run does not have."""
    metric = main_metric(undisturbed)
    reference = whole(undisturbed).get(metric, ())
    laid = replay(reference, trace.attempts, metric)
    if laid.missing:
        first = reference[laid.missing[0]][0]
        at = f", the first is step {first:g}" if first is not None else ""
        return f"{_times(len(laid.missing), 'step')} of {len(reference)} were never reported{at}"
    unknown = [step for one in laid.stretches for step in one.unknown]
    if unknown:
        at = f", the first is step {unknown[0]:g}" if unknown[0] is not None else ""
        return f"{_times(len(unknown), 'step')} that the undisturbed run does not have{at}"
    return ""


def _slight(evidence: Evidence, metrics: list[MetricDifference], files: list[FileChange]) -> bool:
    """Small differences; or temporary ones, while every file is identical in the end."""
    if any(change.fault is not FileFault.NUMBERS or change.relative > SLIGHT for change in files):
        return False
    passing = bool(compared_files(evidence)) and not files
    return all(one.relative <= SLIGHT or (passing and one.heals) for one in metrics)


def _times(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
