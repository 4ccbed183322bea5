"""Recordings of requests to Azure contain no secrets, and can be replayed."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import pytest

from stoker.errors import ProviderFailed
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.account.recording import (
    TrafficRecorder,
    TrafficReplay,
    answered,
    form,
    recording,
)
from stoker.providers.azure.account.scrubbing import CLIENT, SUBSCRIPTION, TENANT, Scrubber

MINE, HOME, ME = "aaaaaaaa-0000-4000-8000-000000000001", "aaaaaaaa-0000-4000-8000-000000000002", "bbbbbbbb-1-1-1-1"
OTHER = "cccccccc-0000-4000-8000-000000000003"
SCRUB = Scrubber(MINE, HOME, ME)


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("c2lnbmVk", "https://a.blob.core.windows.net/c/k?sv=2024&sig=c2lnbmVk&se=1"),
        ("eyJhbGciOi", "it says eyJhbGciOiJIUzI1NiJ9.eyJvaWQiOiJ4In0.abc"),
        ("AAAA", f"AccountName=x;AccountKey={'A' * 86}==;"),
        ("A" * 86, f"the key {'A' * 86}== of an account"),
        ("s3cret", "grant_type=client_credentials&client_secret=s3cret"),
        ("abcdef", "Authorization: Bearer abcdef"),
        ("anna@example.org", "the user anna@example.org has no right"),
        (MINE, f"/subscriptions/{MINE.upper()}/resourceGroups/g".lower()),
        (MINE.upper(), f"/subscriptions/{MINE.upper()}/resourceGroups/g"),
        (OTHER, f"object id '{OTHER}'"),
        (MINE.replace("-", ""), f"stoker{MINE.replace('-', '')}"),
        ("eyJvaWQi", "x%3DeyJhbGciOiJIUzI1NiJ9.eyJvaWQiOiJ4In0.abc"),
        ("ZXlKaGJH", f"token={b64('eyJhbGciOiJIUzI1NiJ9.eyJvaWQiOiJ4In0.abc')}"),
        (b64("password=hush"), f"it is {b64('password=hush')}"),
        ("hush", "https%3A%2F%2Fx%3Fsv%3D1%26sig%3Dhush%252Bhush%26se%3D2"),
        ("hush", "client_assertion=hush&refresh_token=hush"),
        ("hush", "SharedKey: no; AUTHORIZATION: SharedKey me:hush"),
        ("aHVzaA==", "authorization: Basic aHVzaA=="),
        ("hush", "https://user:hu/hush@host/x"),
        ("hush", 'the body was {"adminPassword": "hush", "x": 1}'),
        ("hush", json.dumps({"x": json.dumps({"password": "hush"})})),
        ("hush", "export HF_TOKEN: hush"),
        ("hush", 'password: "[a hush]"'),
        ("hush", "password: 'a hush'"),
        ("hush", "adminPassword: [a hush]"),
        ("hush", json.dumps({"x": 'password: "a hush"'})),
        ("b3BlbnNz", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r\n-----END OPENSSH PRIVATE KEY-----"),
        ("hf_abcdef", "it printed hf_abcdefghijklmnopqrst"),
        ("anna", "anna%40example.org"),
        ("MIIHhzCCBm", "https://x/operations/1?api-version=1&t=1&c=MIIHhzCCBm-gAwIBAgIT&s=abcdefghijklmnopqrst&h=q"),
    ],
)
def test_no_text_keeps_a_secret_or_an_id(secret: str, text: str) -> None:
    assert secret not in SCRUB.text(text)


def test_ids_become_the_same_stand_ins_everywhere() -> None:
    assert SCRUB.text(f"{MINE} {HOME}") == f"{SUBSCRIPTION} {TENANT}"
    first, second = SCRUB.text(OTHER), SCRUB.text(f"x/{OTHER.upper()}")
    assert second == f"x/{first}"
    assert SCRUB.text(first) != OTHER


@pytest.mark.parametrize(
    "field",
    [
        *("customData", "adminPassword", "protectedSettings", "script", "keyData", "secretText", "contactEmails"),
        *("storageAccountKey", "api_key", "id_token", "sasUri", "secureValue", "privateKey", "X-Api-Key", "output"),
    ],
)
def test_fields_that_hold_secrets_are_hidden_at_any_depth(field: str) -> None:
    body = {"properties": {"parts": [{field: "hush"}, {field: {"value": "hush"}}, {field: ["hush"]}], "open": "yes"}}
    shown = json.dumps(SCRUB.body(body))
    assert "hush" not in shown
    assert "yes" in shown


@pytest.mark.parametrize("name", ["password", "HF_TOKEN"])
def test_the_value_of_a_pair_with_a_secret_name_is_hidden(name: str) -> None:
    body = {"env": [{"name": name, "value": "hush"}, {"name": "SIZE", "value": "D4"}]}
    assert SCRUB.body(body)["env"] == [{"name": name, "value": "<hidden>"}, {"name": "SIZE", "value": "D4"}]


def test_what_is_no_secret_stays() -> None:
    body = {
        "disablePasswordAuthentication": True,
        "nextLink": "https://a/x?api-version=2024-03-01&%24skiptoken=YWJjZGVmZ2hpamtsbW5vcA%3D%3D",
        "message": "The Basic tier has no spot; code: SkuNotAvailable",
        "actions": ["Microsoft.Storage/storageAccounts/listKeys/action"],
        "name": "Standard_D2s_v5",
    }
    assert SCRUB.body(body) == body


def test_a_long_text_takes_no_longer_than_its_length() -> None:
    started = time.process_time()
    for text in ("a-", "token", "://a:"):
        SCRUB.text(text * (40_000 // len(text)))
    assert time.process_time() - started < 2.0


def test_the_declaration_of_a_parameter_and_an_expression_stay() -> None:
    body = {"parameters": {"customData": {"type": "securestring"}}, "customData": "[parameters('customData')]"}
    assert SCRUB.body(body) == body


@pytest.mark.parametrize(
    "value",
    [
        "[hush]",
        "[hush!()'x']",
        "[[hush]",
        "[concat('hush', parameters('customData'))]",
        "[parameters('hush') , 'hush']",
        "[base64('hush')]",
        "[parameters('hush')]\n[hush]",
        "[parameters('hush')]",
        {"type": "hush"},
        {"type": "securestring", "defaultValue": "hush"},
    ],
)
def test_a_secret_in_brackets_is_hidden_and_so_is_one_inside_an_expression(value: object) -> None:
    """A generated password may begin and end with brackets; an expression may contain the secret itself."""
    assert "hush" not in json.dumps(SCRUB.body({"properties": {"osProfile": {"adminPassword": value}}}))


@pytest.mark.parametrize("kind", ["securestring", "secureObject", "SecureString"])
def test_values_of_secure_parameters_are_hidden_whatever_their_names_are(kind: str) -> None:
    template = {"parameters": {"pin": {"type": kind, "defaultValue": "hush"}, "size": {"type": "string"}}}
    body = {"properties": {"template": template, "parameters": {"PIN": {"value": "hush"}, "size": {"value": "D4"}}}}
    shown = SCRUB.body(body)
    assert "hush" not in json.dumps(shown)
    assert shown["properties"]["parameters"]["size"] == {"value": "D4"}
    assert shown["properties"]["template"]["parameters"]["size"] == {"type": "string"}


@pytest.mark.parametrize("word", ["listKeys", "runCommand", "regenerateKey"])
def test_answers_that_are_nothing_but_secrets_are_hidden_whole(word: str) -> None:
    assert SCRUB.body({"keys": [{"value": "hush"}]}, f"/x/{word}") == "<hidden>"


def test_nothing_is_written_unless_the_switch_is_on(tmp_path: Path) -> None:
    recorder, file = TrafficRecorder(Account(MINE, switch=str(tmp_path / "azure.record"))), tmp_path / "asked.jsonl"
    assert not recorder.on
    with recording(tmp_path, file):
        assert recorder.on
        recorder.note(("GET", f"https://x/subscriptions/{MINE}?api-version=1", None), 200, {"Date": "now"}, b'{"a":1}')
    assert not recorder.on
    (line,) = [json.loads(one) for one in file.read_text().splitlines()]
    assert line["url"] == f"https://x/subscriptions/{SUBSCRIPTION}?api-version=1"
    assert (line["status"], line["answer"], line["headers"]) == (200, {"a": 1}, {"Date": "now"})
    assert file.stat().st_mode & 0o077 == 0


def test_requests_of_one_form_are_answered_in_their_order_and_the_last_again(tmp_path: Path) -> None:
    file = tmp_path / "asked.jsonl"
    lines: list[dict[str, object]] = [
        {"method": "GET", "url": f"https://a/x/{OTHER}?api-version=1", "status": 200, "headers": {}, "answer": number}
        for number in (1, 2)
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    replay = TrafficReplay(file)
    told = [answered(replay.answer("GET", f"https://b/X/{MINE}?api-version=1"))[2] for _ in range(3)]
    assert told == [b"1", b"2", b"2"]
    with pytest.raises(ProviderFailed, match="GET /y"):
        replay.answer("GET", "https://b/y?api-version=1")


def test_names_by_chance_do_not_matter_and_versions_do() -> None:
    assert form("GET", "https://a/g/doctor-0123abcd?api-version=1") == form(
        "get", "https://b/g/doctor-9876fedc?api-version=1"
    )
    assert form("GET", "https://a/g?api-version=1") != form("GET", "https://a/g?api-version=2")
    assert CLIENT not in form("GET", f"https://a/{CLIENT}")
