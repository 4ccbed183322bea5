"""A scan of real files: secrets stay here, and what only looks like one is uploaded.

Values are made from seeds, so that nothing in this file is a secret, or looks like one to other scanners.
"""

from __future__ import annotations

import base64
import json
import random
import string
from pathlib import Path

import pytest

from stoker.client.source.screening import Screened
from stoker.client.source.tree import scan

_ALL = string.ascii_letters + string.digits


def text(size: int, seed: int = 1, signs: str = _ALL) -> str:
    chance = random.Random(seed * 7919 + size)
    return "".join(chance.choice(signs) for _ in range(size))


def hexes(size: int, seed: int = 1) -> str:
    return text(size, seed, "0123456789abcdef")


def password(size: int, seed: int = 1) -> str:
    return f"q7{text(size - 4, seed, _ALL + '!@#%^&*')}Z9"


def b64(size: int, seed: int = 1) -> str:
    return base64.b64encode(random.Random(seed).randbytes(size)).decode()


UUID = "-".join(hexes(size, size) for size in (8, 4, 4, 4, 12))
LEFT_OUT = {
    "config.yaml": f"model: resnet\ndatabase:\n  host: db\n  password: {password(18)}\n",
    "conf/db.yml": f'db_password: "{password(16, 2)}"\n',
    "conf/service.yaml": f"api_key: {text(32, 3)}\n",
    "conf/token.yaml": f"auth:\n  token: {text(40, 4)}  # of the registry\n",
    "conf/hydra/logger.yaml": f"wandb:\n  api_key: {hexes(40, 5)}\n",
    "params.yaml": f"lr: 0.1\nneptune_api_token: {b64(60, 6)}\n",
    "docker-compose.yml": f"services:\n  db:\n    environment:\n      - POSTGRES_PASSWORD={text(24, 7)}\n",
    "helm/values.yaml": f"minio:\n  rootUser: admin\n  secretKey: {text(40, 8)}\n",
    "k8s/secret.yaml": f"apiVersion: v1\nkind: Secret\ndata:\n  password: {b64(18, 9)}\n",
    "mlflow.yaml": f"tracking_uri: https://ml:{password(14, 10)}@mlflow.example.org/\n",
    "airflow.cfg": f"[core]\nsql_alchemy_conn = postgresql://air:{text(20, 11)}9a@db/airflow\n",
    "alembic.ini": f"[alembic]\nsqlalchemy.url = postgresql+psycopg://app:{password(16, 12)}@db:5432/app\n",
    "settings.ini": f"[smtp]\nuser=a\npassword={password(15, 13)}\n",
    "app.cfg": f"[auth]\nclient_secret = {text(34, 14)}7\n",
    "secrets.toml": f'[openai]\napi_key = "{text(48, 15)}"\n',
    "pyproject.toml": f'[tool.uploader]\ntoken = "{text(36, 16)}"\n',
    "config/prod.toml": f"[redis]\npassword = '{password(20, 17)}'\n",
    "config.json": json.dumps({"host": "db", "password": password(18, 18)}, indent=1),
    "settings.json": json.dumps({"azure": {"client_secret": text(40, 19)}}),
    "local.settings.json": json.dumps({"Values": {"ApiKey": text(32, 20) + "a1"}}),
    "appsettings.json": json.dumps({"Jwt": {"SigningKey": text(44, 21)}}, indent=2),
    "comet.json": json.dumps({"api_key": text(25, 22), "workspace": "w"}),
    "label-studio.json": json.dumps({"url": "http://ls", "token": hexes(40, 23)}),
    "dagshub.json": json.dumps({"access_token": hexes(40, 24)}),
    ".npmrc": f"registry=https://npm.example.org\n_auth={b64(30, 25)}\n",
    ".yarnrc.yml": f'npmAuthToken: "{text(36, 26)}"\n',
    ".condarc": f"channels:\n  - https://t:{text(30, 27)}8b@conda.example.org/main\n",
    ".wgetrc": f"user=a\npassword={password(14, 28)}\n",
    ".pip/pip.conf": f"[global]\nindex-url = https://u:{text(24, 29)}1c@pypi.example.org/simple\n",
    "app.properties": f"spring.datasource.password={password(16, 30)}\n",
    "log4j.properties": f"appender.token={text(36, 31)}\n",
    "infra/prod.tfvars": f'db_password = "{password(20, 32)}"\n',
    "my.cnf": f"[client]\npassword={password(16, 33)}\n",
    "notes.md": f"Use this one:\n\n    export SERVICE_TOKEN={text(40, 34)}\n",
    "README.txt": f"api_key: {text(40, 35)}\n",
    "deploy.env.txt": f"SECRET_KEY={text(50, 36)}\n",
    "explore.ipynb": json.dumps({"cells": [{"source": [f'api_key = "{text(32, 37)}4d"\n', "x = 1"]}]}, indent=1),
    "web/firebase.json": json.dumps({"private_key_id": "x", "secret": text(40, 38)}),
    "slurm.conf": f"AccountingStoragePass=munge\nauth_key={text(40, 39)}\n",
    "grafana.ini": f"[security]\nsecret_key = {text(20, 40)}5e\n",
    "rabbit.config": f'[{{rabbit, []}}].\ndefault_pass = a\nmaster_key = "{hexes(64, 41)}"\n',
    "sweep.yaml": f"project: p\nlicense_key: {text(29, 42)}3f\n",
    "mail.yml": f"passphrase: '{password(22, 43)}'\n",
    "curl.txt": f'curl -H "Authorization: Bearer {text(40, 60)}" https://api.service.io/v1\n',
    "requests.http": f"GET /v1/runs HTTP/1.1\nauthorization: bearer {text(64, 61)}.{text(20, 62)}\n",
    "postman.json": json.dumps({"headers": {"Authorization": f"Bearer {UUID}"}}),
    "notes/access.md": f"The service wants `Authorization: Bearer {b64(30, 63)}`.\n",
    "links.txt": f"mongodb+srv://app:{text(18, 64)}3x@cluster0.ab1cd.mongodb.net/db\n",
    "how-to.md": f"    psql postgresql://app:{password(16, 65)}@db.internal.acme.io:5432/app\n",
    "tunnel.ipynb": json.dumps(
        {"cells": [{"source": [f'redis.from_url("redis://:{text(20, 66)}4y@cache.acme.io/0")']}]}
    ),
    "heroku.txt": f"postgres://u7:{hexes(64, 67)}@ec2-1-2-3-4.compute-1.amazonaws.com:5432/d9\n",
    "proxy.yaml": f"https_proxy: http://me:{password(12, 44)}@proxy.example.org:3128\n",
}
CODE = {
    "train.py": f'API_KEY = "{text(32, 50)}b2"\n',
    "src/db.py": f"connect(user='a', password='{text(24, 51)}c3')\n",
    "upload.sh": f"export SERVICE_TOKEN={text(36, 52)}\n",
    "notebook.py": f'os.environ["MY_API_KEY"] = "{text(40, 53)}"\n',
    "client.ts": f'const clientSecret = "{text(40, 54)}";\n',
    "Dockerfile": f"FROM python\nENV REGISTRY_TOKEN={text(32, 55)}d4\n",
    "main.go": f'var authToken = "{text(40, 56)}"\n',
    "call.py": f'requests.get(url, headers={{"Authorization": "Bearer {text(40, 70)}"}})\n',
    "call2.py": f'session.headers["Authorization"] = "Bearer " + "{hexes(40, 71)}"\n',
    "fetch.sh": f"curl -sH 'Authorization: Bearer {text(43, 72)}' https://api.acme.io\n",
    "fetch.ts": f"fetch(url, {{ headers: {{ authorization: `Bearer {text(48, 73)}` }} }});\n",
    "engine.py": f'engine = create_engine("postgresql://user:{password(14, 74)}@db.acme.io/prod")\n',
    "short.py": 'DB = "postgresql://user:S3cr' + '3tPw@db.acme.io/prod"\n',
    "queue.go": f'conn, _ := amqp.Dial("amqp://svc:{text(16, 75)}7z@mq.acme.io:5672/")\n',
    "broker.py": f'BROKER = "amqp://svc:{hexes(32, 77)}@mq.acme.io:5672/"\n',
    "load.R": f'con <- dbConnect(url = "mysql://me:{text(15, 76)}2W@10.4.0.7/db")\n',
    "job.R": f"secret <- 1\napi_key = '{text(32, 57)}e5'\n",
}
_PACKAGES = [
    {"name": f"p{n}", "resolved": f"https://r/p{n}.tgz", "integrity": f"sha512-{b64(64, n)}"} for n in range(30)
]
SENT = {
    "package-lock.json": json.dumps({"packages": _PACKAGES}, indent=1),
    "poetry.lock": "\n".join(f'{{file = "a{n}.whl", hash = "sha256:{hexes(64, n)}"}},' for n in range(50)),
    "uv.lock": "\n".join(
        f'url = "https://files/{hexes(60, n)}/x.whl", hash = "sha256:{hexes(64, n)}"' for n in range(50)
    ),
    "Pipfile.lock": json.dumps({"_meta": {"hash": {"sha256": hexes(64)}}, "default": {"a": {"hashes": [hexes(64)]}}}),
    "requirements.txt": f"numpy==2.0 \\\n    --hash=sha256:{hexes(64)}\n",
    "Cargo.lock": f'[[package]]\nname = "a"\nchecksum = "{hexes(64)}"\n',
    "go.sum": f"github.com/a/b v1.0.0 h1:{b64(32)}\n",
    ".terraform.lock.hcl": f'hashes = ["h1:{b64(32)}"]\n',
    "conda-lock.yml": f"hash:\n  md5: {hexes(32)}\n  sha256: {hexes(64)}\n",
    "environment.yml": "dependencies:\n  - python=3.11.7=h955ad1f_0\n",
    ".pre-commit-config.yaml": f"repos:\n- repo: https://github.com/a/b\n  rev: {hexes(40)}\n",
    ".git-blame-ignore-revs": f"{hexes(40)}\n{hexes(40, 2)}\n",
    "model/config.json": json.dumps({"_commit_hash": hexes(40), "bos_token_id": 1, "eos_token": "<|endoftext|>"}),
    "model/tokenizer_config.json": json.dumps({"pad_token": "[PAD]", "unk_token": "<unk>", "model_max_length": 10**30}),
    "model/special_tokens_map.json": json.dumps({"additional_special_tokens": ["<|reserved_special_token_250|>"]}),
    "model/tokenizer.json": json.dumps({"model": {"vocab": {text(8, n): n for n in range(500)}}}, indent=1),
    "model/vocab.json": json.dumps({f"Ġ{text(6, n)}": n for n in range(300)}),
    "model/merges.txt": "\n".join(f"{text(3, n)} {text(2, n)}" for n in range(300)),
    "model/generation_config.json": json.dumps({"transformers_version": "4.44.2", "pad_token_id": 0}),
    "model/model.safetensors.index.json": json.dumps(
        {"weight_map": {f"layers.{n}.self_attn.k_proj.weight": "model-00001-of-00003.safetensors" for n in range(40)}}
    ),
    "data/nuscenes/sample.json": json.dumps(
        [{"token": hexes(32, n), "scene_token": hexes(32, n + 9)} for n in range(40)], indent=1
    ),
    "data/index.jsonl": "\n".join(json.dumps({"key": f"{n:08d}", "sha256": hexes(64, n)}) for n in range(40)),
    "data/rows.csv": "user,password_hash\n" + "\n".join(f"u{n},{hexes(64, n)}" for n in range(40)),
    "data/dvc.yaml": f"outs:\n- md5: {hexes(32)}.dir\n  path: data\n",
    "data/images.dvc": f"outs:\n- md5: {hexes(32)}\n  hash: md5\n",
    "plot.ipynb": json.dumps(
        {"cells": [{"outputs": [{"data": {"image/png": b64(20_000)}}], "source": ["plt.show()"]}]}, indent=1
    ),
    "logo.svg": f'<svg><image href="data:image/png;base64,{b64(3000)}"/></svg>',
    "style.css": f"@font-face{{src:url(data:font/woff2;base64,{b64(3000)})}}",
    "app.min.js": "var a=" + ";".join(f'b{n}="{n * 7919}"' for n in range(300)) + f';token="{text(40)}"',
    "wandb/run.yaml": f"run_id: {text(8)}\ngit_commit: {hexes(40)}\n",
    "mlruns/meta.yaml": f"artifact_uri: ./mlruns/0/{hexes(32)}/artifacts\nrun_uuid: {hexes(32)}\n",
    "checkpoint.json": json.dumps({"checkpoint_id": hexes(32), "step": 100, "cache_key": hexes(64)}),
    "config/train.yaml": "token: ${oc.env:HF_TOKEN}\npassword: '{{ vault.password }}'\napi_key: <your-api-key>\n",
    "config/example.toml": 'api_key = "your_api_key_1234567890abcdef"\npassword = "changeme-please-2024"\n',
    "config/paths.yaml": "token_file: /run/secrets/registry_token_v2\npassword_file: /etc/app/Password2024.txt\n",
    "config/keys.yaml": "sort_key: created_at_2024_desc_v12345\npartition_key: user_id_1234567890ab\n",
    "config/tokens.yaml": "max_tokens: 4096\nnum_tokens: 123456789012345678\ntokenizer: meta-llama/Llama-3.1-8B\n",
    "config/names.yaml": "secret: registry-pull-credentials-eu-west\nsecretName: my-app-tls-cert\npassword: none\n",
    "config/aws.yaml": "access_key: AKIAIOSFODNN7EXAMPLE\n",
    "auth.py": "token = tokenizer.encode_plus_v2_fast_1\npassword = getpass.getpass(prompt='Password 1234 for x: ')\n",
    "login.py": 'api_key = os.environ["SERVICE_API_KEY_V2_2024"]\nTOKEN_URL = "https://login.example.org/oauth2/v2.0/token"\n',
    "tests/test_auth.py": 'PASSWORD = "hunter2"\nTOKEN = "not-a-real-token-at-all-1"\nsecret = "x" * 32\n',
    "hashes.py": f'SHA256 = "{hexes(64)}"\nREVISION = "{hexes(40)}"\nKEYS = ["{text(24)}"]\n',
    "uuid.yaml": f"dataset_id: {UUID}\nsubscription: {UUID}\ntenant_id: {UUID}\n",
    "schema.json": json.dumps(
        {"properties": {"password": {"type": "string", "minLength": 12}, "token": {"$ref": "#/x"}}}
    ),
    "docs/api.md": "Send `Authorization: Bearer <token>`; `password: ********`; `secret: REDACTED-BY-ADMIN-2024`\n",
    "bearer.py": (
        'headers = {"Authorization": f"Bearer {token}"}\n'
        'headers = {"Authorization": "Bearer " + os.environ["SERVICE_TOKEN_V2_2024"]}\n'
        'headers = {"Authorization": "Bearer %s" % get_access_token_v2_of_service_1()}\n'
        'AUTH = "Bearer {}".format(token_from_keyring_v2_entry_12)\n'
        "# Bearer tokens are described in RFC6750; a bearer authentication_middleware_v2_handler is enough\n"
    ),
    "bearer.sh": 'curl -H "Authorization: Bearer $SERVICE_TOKEN_2024_V2" -H "Authorization: Bearer ${TOKEN}" u\n',
    "bearer.md": (
        "Authorization: Bearer <your-access-token-from-2024>\nAuthorization: Bearer YOUR_API_TOKEN_GOES_HERE_1234\n"
        "Authorization: Bearer mF_9.B5f-4.1JqM\nAuthorization: Bearer 2YotnFZFEjr1zCsicMWpAA\n"
        "Authorization: Bearer xxxxxxxxxxxxxxxxxxxxxxxx1a\nAuthorization: Bearer ********\n"
    ),
    "bearer.yaml": "securitySchemes:\n  bearerAuth:\n    type: http\n    scheme: bearer\n    bearerFormat: JWT\n",
    "urls.py": (
        "URL = f\"postgresql://{user}:{os.environ['DB_PASSWORD_V2']}@{host}/db\"\n"
        'URL = "postgresql://%s:%s@%s/db" % (user, password, host)\n'
        'URL = "postgresql+psycopg://scott:tiger@db.acme.io/test"\n'
        'URL = "postgresql://user:password@localhost:5432/db"\n'
        'URL = "postgresql://user:Passw0rdOf2Tests9@localhost:5432/db"\n'
        'URL = "mysql://app:Xy7kQ2mPz9@127.0.0.1/test"\n'
        'URL = "https://user:Sw0rdf1shXy9Q@example.com/"\n'
    ),
    "urls.sh": "psql postgresql://app:${DB_PASSWORD}@db.acme.io/app; pip install git+https://git.acme.io/a/b.git@3f2A9cD1e\n",
    "urls.md": (
        "postgresql://<user>:<password>@<host>/<db>, https://my-user:my-password@git.acme.io,\n"
        "amqp://guest:guest@mq.acme.io:5672/, see https://medium.com/@a1B2c3D4e5F6/x and ssh://git@host:2222/A1b2C3d4\n"
    ),
    "cameras.csv": "name,url\nfront,rtsp://viewer:viewer@10.0.0.5/1\n",
    "openapi.yaml": "tokenUrl: https://login.microsoftonline.com/common/oauth2/v2.0/token\npassword:\n  type: string\n",
    "id_rsa.pub": f"ssh-rsa {b64(270)} me@host\n",
    "cert.pem": f"-----BEGIN CERTIFICATE-----\n{b64(700)}\n-----END CERTIFICATE-----\n",
    "LICENSE": "Permission is hereby granted, free of charge, to any person obtaining a copy of this software\n",
}
BINARY = {
    "weights.bin": b"\0\1token=" + text(40).encode() + b"\n" * 9,
    "model.safetensors": b"\x40\0\0\0\0\0\0\0{}" + bytes(99),
}


def verdicts(root: Path, path: str, data: bytes) -> tuple[bool, list[Screened]]:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(data)
    (root / "other.py").write_text("print(1)\n")
    tree = scan(root)
    return path in {entry.path for entry in tree.snapshot.entries}, [one.verdict for one in tree.findings]


def test_there_are_enough_samples_to_mean_something() -> None:
    assert len(LEFT_OUT) >= 40
    assert len(SENT) >= 40


@pytest.mark.parametrize("path", LEFT_OUT)
def test_a_file_with_a_secret_value_is_left_out_and_reported(tmp_path: Path, path: str) -> None:
    assert verdicts(tmp_path, path, LEFT_OUT[path].encode()) == (False, [Screened.LEFT_OUT]), LEFT_OUT[path]


@pytest.mark.parametrize("path", CODE)
def test_code_with_a_secret_value_stops_the_run(tmp_path: Path, path: str) -> None:
    assert verdicts(tmp_path, path, CODE[path].encode()) == (False, [Screened.REFUSED]), CODE[path]


@pytest.mark.parametrize("path", SENT)
def test_what_only_looks_like_a_secret_is_sent_without_a_word(tmp_path: Path, path: str) -> None:
    assert verdicts(tmp_path, path, SENT[path].encode()) == (True, []), SENT[path][:300]


@pytest.mark.parametrize("path", BINARY)
def test_a_binary_file_is_sent(tmp_path: Path, path: str) -> None:
    assert verdicts(tmp_path, path, BINARY[path]) == (True, [])


def test_a_large_data_file_is_sent_with_a_warning(tmp_path: Path) -> None:
    data = f"api_key: {text(32)}a1\n" + "row: 1\n" * 20_000
    assert verdicts(tmp_path, "data.yaml", data.encode()) == (True, [Screened.SUSPECT])
