"""How states look and read."""

from __future__ import annotations

from stoker.model.run import AttemptState, RunState

STYLES: dict[RunState, str] = {
    RunState.QUEUED: "faint",
    RunState.STARTING: "busy",
    RunState.RUNNING: "busy",
    RunState.PAUSED: "warn",
    RunState.SUCCEEDED: "good",
    RunState.FAILED: "error",
    RunState.CANCELLED: "warn",
}
ENDED: dict[RunState, str] = {
    RunState.PAUSED: "is paused",
    RunState.SUCCEEDED: "has succeeded",
    RunState.FAILED: "has failed",
    RunState.CANCELLED: "was cancelled",
}
ATTEMPT_STYLES: dict[AttemptState, str] = {
    AttemptState.ASKED: "faint",
    AttemptState.RUNNING: "busy",
    AttemptState.ENDED: "",
    AttemptState.LOST: "warn",
    AttemptState.EVICTED: "warn",
    AttemptState.MOVED: "",
}
