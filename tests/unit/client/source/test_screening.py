"""Secrets in a source folder: found by name or by form, left out or refused, and never shown.

The tokens here are put together from two halves, so that no scanner reports this file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import string
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.client.source import screening
from stoker.client.source.screening import Screened, SecretFinding, secret_file
from stoker.client.source.secretvalues import EDITION, SecretHit, secrets_in, sure_kind
from stoker.client.source.tree import scan
from stoker.errors import SnapshotRefused

LETTERS = string.ascii_letters + string.digits
draw = random.Random(7)


def random_text(length: int, characters: str = LETTERS) -> str:
    return "".join(draw.choices(characters, k=length))


KEY = "-----BEGIN OPENSSH PRIVATE" + f" KEY-----\n{random_text(70)}\n{random_text(70)}\n"
TOKENS = {
    "private key": KEY,
    "AWS access key": "AKI" + "A" + random_text(16, string.ascii_uppercase + "234567"),
    "AWS secret key": "aws_secret_access" + f"_key = {random_text(40)}",
    "GitHub token": "gh" + f"p_{random_text(36)}",
    "GitLab token": "glp" + f"at-{random_text(20)}",
    "Hugging Face token": "h" + f"f_{random_text(34)}",
    "API key": "s" + f"k-{random_text(48)}",
    "Slack token": "xo" + f"xb-{random_text(12, string.digits)}-{random_text(24)}",
    "Google API key": "AI" + f"za{random_text(35)}",
    "npm token": "np" + f"m_{random_text(36)}",
    "Azure storage key": "Account" + f"Key={random_text(86)}==",
    "Azure SAS token": "https://a.blob.core.windows.net/c?sv=2022-11-02&se=2030-01-01&si" + f"g={random_text(43)}%3D",
    "JSON web token": "ey" + f"J{random_text(30)}.ey" + f"J{random_text(60)}.{random_text(43)}",
    "Weights & Biases key": "WANDB_API" + f"_KEY={random_text(40, '0123456789abcdef')}",
}


@pytest.mark.parametrize("kind", TOKENS)
def test_a_token_is_recognised_with_its_line(kind: str) -> None:
    text = f"import os\n\nvalue = '{TOKENS[kind]}'\n"
    assert SecretHit(3, kind, True) in secrets_in(text.encode())
    assert sure_kind(TOKENS[kind]) == kind


def test_a_key_inside_json_or_a_string_is_recognised() -> None:
    account = json.dumps({"type": "service_account", "private_key": KEY})
    assert [hit.kind for hit in secrets_in(account.encode())] == ["private key"]


@pytest.mark.parametrize(
    "text",
    [
        'if "-----BEGIN RSA PRIVATE KEY-----" in text: pass',
        "AKIAIOSFODNN7EXAMPLE",
        "hf_hub_download(repo_id, filename)",
        "hf_" + "x" * 34,
        "token = os.environ['HF_TOKEN']",
        'tokenizer = "meta-llama/Llama-2-7b-chat-hf-0123456789"',
        'token = "<|endoftext|>"',
        'key = "conv1.layers.0.weight.running_mean"',
        'access_key = "YOUR_ACCESS_KEY_GOES_HERE_1234567"',
        f"numpy==2.0 --hash=sha256:{hashlib.sha256(b'x').hexdigest()}",
        f'"integrity": "sha512-{base64.b64encode(hashlib.sha512(b"x").digest()).decode()}"',
        f'name = "torch"\nurl = "https://files/{hashlib.sha256(b"y").hexdigest()}/torch.whl"',
        f"commit {hashlib.sha1(b'x', usedforsecurity=False).hexdigest()}",
        json.dumps({"image/png": base64.b64encode(random.Random(1).randbytes(20_000)).decode()}),
        "var a=" + ";".join(f'b{n}="{n * 7919}"' for n in range(300)) + f';token="{random_text(40)}"',
    ],
    ids=lambda text: text[:30],
)
def test_what_only_looks_a_little_like_a_secret_is_not_touched(text: str) -> None:
    assert secrets_in(text.encode()) == []


def test_a_random_value_with_a_telling_name_is_suspect_and_no_more() -> None:
    text = f'LOSS = 1\nmy_api_key = "{random_text(32)}a9"\n'
    assert secrets_in(text.encode()) == [SecretHit(2, "value of `my_api_key`", False)]


@pytest.mark.parametrize("kind", ["AWS access key", "Hugging Face token"])
def test_a_token_without_a_single_digit_is_recognised(kind: str) -> None:
    plain = str.maketrans("0123456789", "QWRTZPLKJH")
    assert [hit.kind for hit in secrets_in(f"a {TOKENS[kind].translate(plain)} b".encode())] == [kind]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("GitLab token", "glp" + "at-a7b-c3d_e9f-g1h_j5k-m2n"),
        ("Google API key", "AI" + "zaSyA7b-c3D_e9F-g1H_j5K-m2N_p4Q-r6S_t"),
        ("npm token", "//registry.npmjs.org/:_auth" + "Token=6f1d2a9b-3c4e-4d57-8a61-9b0e2f7c5d83"),
    ],
)
def test_a_token_in_short_pieces_is_recognised(kind: str, text: str) -> None:
    assert secrets_in(text.encode()) == [SecretHit(1, kind, True)]


@pytest.mark.parametrize(
    "line",
    [
        "api_key: {}",
        "  password: {}  # of the database",
        "client_secret={}\r",
        "export SERVICE_TOKEN={}",
        "ENV SERVICE_TOKEN={}",
        "  - DB_PASSWORD={}",
    ],
)
def test_a_random_value_needs_no_quotes_to_be_suspect(line: str) -> None:
    text = f"a: 1\n{line.format(random_text(32) + 'a9')}\nb: 2\n"
    [(number, kind, sure)] = secrets_in(text.encode())
    assert (number, sure) == (2, False)
    assert kind.startswith("value of `")


@pytest.mark.parametrize(
    "line",
    [
        "token = layers12.attention34.output56(x)",
        "api_key = os.environ[NAME2OF3THE4KEY5]",
        "password = load_v2_of_1(x)",
    ],
)
def test_an_expression_is_not_a_value(line: str) -> None:
    assert secrets_in(f"{line}\n".encode()) == []


def test_a_text_as_windows_writes_it_is_read_too() -> None:
    assert secrets_in(f"A=1\r\n{TOKENS['GitHub token']}\r\n".encode("utf-16")) == [SecretHit(2, "GitHub token", True)]


@given(st.binary(max_size=2000))
def test_any_bytes_are_scanned_without_a_crash(data: bytes) -> None:
    assert all(hit.line >= 1 for hit in secrets_in(data))


@pytest.mark.parametrize(
    "piece",
    [
        "token",
        "key='",
        "-----BEGIN PRIVATE KEY-----\n",
        "eyJ",
        "sv=",
        "a.",
        "'\"",
        "sk-",
        "xoxb-",
        "hf_a",
        "sig=&",
        "AccountKey=",
    ],
)
def test_a_hostile_file_takes_no_longer_than_another(piece: str) -> None:
    begun = time.process_time()
    secrets_in((piece * (1 << 20))[: 1 << 20].encode())
    assert time.process_time() - begun < 2.0


@pytest.mark.parametrize(
    "path",
    [
        *(".env", "conf/.env.production", "prod.env", ".envrc", "id_rsa", "keys/id_ed25519", "id_rsa.old", ".netrc"),
        *(
            ".pypirc",
            ".aws/credentials",
            "sub/.aws/credentials",
            ".kube/config",
            "kubeconfig",
            "infra/terraform.tfstate",
        ),
        *(".git-credentials", ".azure/msal_token_cache.json", ".huggingface/token", "cert.pfx", "kaggle.json"),
        ".config/gcloud/credentials.db",
        *(".docker/config.json", ".ssh/work", ".streamlit/secrets.toml", "terraform.tfstate.backup", ".ENV"),
    ],
)
def test_known_secret_files_are_known_by_name(path: str) -> None:
    assert secret_file(path)


@pytest.mark.parametrize(
    "path",
    [
        *(
            "train.py",
            ".env.example",
            ".env.sample",
            "env.template.env",
            "id_rsa.pub",
            ".ssh/known_hosts",
            "config.json",
        ),
        *("gcloud/train.py", "infra/gcloud/deploy.sh", "id_rsa_old.pub", "id_ed25519-cert.pub"),
        *(
            "environment.yml",
            "src/env.py",
            "token",
            "data/token",
            "my.pem",
            "model.key.txt",
            "identity.py",
            "id_map.json",
        ),
    ],
)
def test_ordinary_files_are_not_taken_for_secret_ones(path: str) -> None:
    assert secret_file(path) == ""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "conf").mkdir(parents=True)
    (root / "train.py").write_text("print(1)\n")
    return root


def found(source: Path, **options: object) -> tuple[list[str], list[SecretFinding]]:
    tree = scan(source, **options)  # type: ignore[arg-type]
    return [entry.path for entry in tree.snapshot.entries], list(tree.findings)


def test_secret_files_and_texts_with_tokens_are_left_out(source: Path) -> None:
    (source / ".env").write_text("A=1\n")
    (source / "conf" / "login.yaml").write_text(f"user: a\ntoken: {TOKENS['GitHub token']}\n")
    (source / "conf" / "server.pem").write_text(KEY)
    (source / "conf" / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    paths, findings = found(source)
    assert paths == ["conf/ca.pem", "train.py"]
    assert sorted(map(str, findings)) == [
        ".env (environment variables)",
        "conf/login.yaml:2 (GitHub token)",
        "conf/server.pem:1 (private key)",
    ]
    screening.check(findings)
    told = "\n".join(screening.lines(findings))
    assert "not uploaded" in told and "echo '!" in told


def test_a_token_in_code_stops_the_submission_and_is_not_shown(source: Path) -> None:
    (source / "train.py").write_text(f"import os\nlogin('{TOKENS['Hugging Face token']}')\n")
    _, findings = found(source)
    with pytest.raises(SnapshotRefused) as caught:
        screening.check(findings)
    assert "train.py:2 (Hugging Face token)" in caught.value.message
    assert "echo '!train.py' >> .stokerignore" in caught.value.hint
    assert TOKENS["Hugging Face token"][3:12] not in str(caught.value)


def test_a_text_that_the_job_names_is_needed_as_code_is(source: Path) -> None:
    (source / "requirements.txt").write_text(f"pkg @ https://{TOKENS['GitHub token']}@host/pkg\n")
    _, findings = found(source, needed={"requirements.txt"})
    assert [one.verdict for one in findings] == [Screened.REFUSED]


@pytest.mark.parametrize("pattern", ["!.env", "!/conf/.env", "!conf/*"])
def test_a_file_is_sent_where_stokerignore_asks_for_it(source: Path, pattern: str) -> None:
    (source / "conf" / ".env").write_text("A=1\n")
    (source / ".gitignore").write_text("!.env\n")
    assert "conf/.env" not in found(source)[0], "what is in git is still not sent"
    (source / ".stokerignore").write_text(f"{pattern}\n")
    paths, findings = found(source)
    assert "conf/.env" in paths
    assert [one.verdict for one in findings] == [Screened.INCLUDED]
    assert screening.lines(findings) == [
        "uploaded with its secrets, because .stokerignore includes it: conf/.env (environment variables)"
    ]


def test_what_is_ignored_anyway_is_not_told_of(source: Path) -> None:
    (source / ".env").write_text("A=1\n")
    (source / ".gitignore").write_text(".env\n")
    assert found(source)[1] == []


def test_a_random_value_with_a_telling_name_stops_the_submission_in_code_and_is_left_out_elsewhere(
    source: Path,
) -> None:
    (source / "train.py").write_text(f'password = "{random_text(24)}a9"\n')
    (source / "conf" / "db.yaml").write_text(f"password: {random_text(24)}a9\n")
    (source / "rows.yaml").write_text(f"token: {random_text(24)}a9\n" + "row: 1\n" * 20_000)
    paths, findings = found(source)
    assert paths == ["rows.yaml"]
    with pytest.raises(SnapshotRefused, match=r"train\.py:1.*`password`"):
        screening.check(findings)
    first, _, last = screening.lines(findings)
    assert first == "not uploaded, because of secrets: conf/db.yaml:1 (value of `password`)"
    assert last == "warning: uploaded, but may contain a secret: rows.yaml:1 (value of `token`)"


def test_names_with_escapes_are_shown_without_them() -> None:
    assert str(SecretFinding("a\x1b[2Jb", 1, "token", Screened.LEFT_OUT)) == "a\\x1b[2Jb:1 (token)"


def test_a_file_that_did_not_change_is_judged_without_reading_it_again(source: Path, tmp_path: Path) -> None:
    (source / "notes.txt").write_text(TOKENS["GitHub token"])

    def look() -> tuple[list[str], list[SecretFinding]]:
        return found(source, index=tmp_path / "index", now_ns=lambda: time.time_ns() + 10**10)

    first = look()
    rows = json.loads((tmp_path / "index").read_text())
    assert rows["notes.txt"][5] == [EDITION, [1, "GitHub token", True]]
    assert TOKENS["GitHub token"] not in (tmp_path / "index").read_text()
    (source / "notes.txt").chmod(0)  # root can read it anyway, so the index is checked next
    rows["notes.txt"][2] = (source / "notes.txt").stat().st_ctime_ns
    rows["notes.txt"][5] = [EDITION, [9, "known from before", True]]
    (tmp_path / "index").write_text(json.dumps(rows))
    assert [str(one) for one in look()[1]] == ["notes.txt:9 (known from before)"]
    rows["notes.txt"][5] = [0, [9, "of another edition", True]]
    (source / "notes.txt").chmod(0o644)
    (tmp_path / "index").write_text(json.dumps(rows))
    assert look() == first


@pytest.mark.parametrize("name", [".env", ".netrc", "id_rsa", "rclone.conf", "terraform.tfstate", "login.p12"])
@pytest.mark.parametrize("end", ["~", ".bak", ".old", "_backup", "-old", " copy", ".orig~"])
def test_a_copy_of_a_secret_file_is_as_secret_as_the_file(name: str, end: str) -> None:
    assert secret_file(f"project/{name}{end}") == secret_file(name) != ""


@pytest.mark.parametrize("name", [".env.example~", ".env-sample", "id_rsa.pub.bak", "model_old", "notes copy", "~"])
def test_a_copy_of_another_file_is_not(name: str) -> None:
    assert not secret_file(name)
