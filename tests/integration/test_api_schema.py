"""Every call of the OpenAPI document, with valid and invalid arguments: no response that it does not describe. The
details of refused bodies are in `test_api_bodies.py`.

A real server with a run, a dataset and a second store; their names are inserted where a call needs one.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from traceback import format_exception_only
from typing import Any
from unittest import SkipTest

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode, checks
from shell import Shell

from stoker.client.api.client import Client
from stoker.client.settings import from_environment

CHECKS = (
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
)
KNOWN = {"name": ["once-1", "pets", "more"], "ref": ["pets", "pets@1"]}  # by the parameter of a path
EXAMPLES = 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    root = tmp_path_factory.mktemp("api")
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON"))}
    shell = Shell(root / "home", root / "project", {**keep, "STOKER_HOME": str(root / "home"), "STOKER_PORT": "0"})
    shell.write("train.py", "import stoker\nstoker.log(loss=0.5)\nopen('outputs/model', 'w').write('weights')")
    shell.job("python train.py", name="once")
    shell.stoker("run")
    shell.write("pets/cat.txt", "meow")
    shell.stoker("data", "put", "pets", "--name", "pets")
    shell.stoker("store", "add", "more", f"file://{root}/more")
    yield shell
    for pid in shell.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def api(server: Shell) -> Any:
    document = Client.connect(from_environment(server.environ)).connection.get("/v1/openapi.json")
    return schemathesis.openapi.from_dict(document).exclude(path="/v1/stop")


def trials(api: Any, server: Shell, examples: int, *, repeatable: bool) -> list[str]:
    """What went wrong, over all calls."""
    facts = json.loads((server.home / "server.json").read_text())
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {facts['token']}"
    wrong: list[str] = []
    for found in api.get_all_operations():
        if not hasattr(found, "ok"):
            wrong.append(f"the document cannot be understood: {found.err()}")
            continue
        operation = found.ok()
        for mode in GenerationMode:
            how = settings(max_examples=examples, derandomize=repeatable)
            try:
                _try(operation, mode, facts["http"], session, how)
            except SkipTest:  # a call without arguments cannot have wrong ones
                continue
            except (Exception, BaseExceptionGroup) as error:
                wrong.append(f"{operation.label} ({mode.value}): {''.join(format_exception_only(error))}")
    return wrong


def _try(operation: Any, mode: GenerationMode, url: str, session: requests.Session, how: settings) -> None:
    @settings(how, deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(operation.as_strategy(generation_mode=mode))
    def one(case: Case[Any]) -> None:
        _put_names(case)
        response = case.call(base_url=url, session=session, timeout=60)
        case.validate_response(response, checks=list(CHECKS))

    one()


def _put_names(case: Case[Any]) -> None:
    """Half of the cases are about something that exists. Nothing waits, and nothing leaves this computer."""
    for name, known in KNOWN.items():
        if name in (case.path_parameters or {}):
            at = len(str(case.path_parameters[name])) % (2 * len(known))
            case.path_parameters[name] = known[at] if at < len(known) else case.path_parameters[name]
    if case.meta and case.meta.generation.mode is GenerationMode.POSITIVE and "wait_s" in (case.query or {}):
        case.query["wait_s"] = "0.01"
    if isinstance(case.body, dict) and isinstance(case.body.get("url"), str):
        case.body["check"] = False


@pytest.mark.timeout(400)
@pytest.mark.heavy
def test_every_call_answers_as_its_document_says(api: Any, server: Shell) -> None:
    wrong = trials(api, server, examples=EXAMPLES, repeatable=True)
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_hundreds_of_cases_for_every_call_are_answered_as_its_document_says(api: Any, server: Shell) -> None:
    wrong = trials(api, server, examples=300, repeatable=False)
    assert not wrong, "\n\n".join(wrong)
