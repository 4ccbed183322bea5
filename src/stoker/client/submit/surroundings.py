"""What a run takes from where it is submitted: variables of the shell, and the origin of its code in git."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stoker.client.source.secretvalues import FileKind, secrets_in
from stoker.errors import BadInput, JobInvalid, Problem
from stoker.model.cause import Cause
from stoker.model.job.fields import encodable
from stoker.model.snapshot import Git

if TYPE_CHECKING:
    from subprocess import Popen

# Every variable of these libraries with this prefix. Longer ones precede shorter ones of the same library.
BEGINNINGS = (
    "OMP_",
    "KMP_",
    "GOMP_",
    "MKL_",
    "OPENBLAS_",
    "BLIS_",
    "NUMEXPR_",
    "NUMBA_",
    "ONEDNN_",
    "DNNL_",
    "XLA_",
    "JAX_",
    "TORCH_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "PYTORCH_",
    "TRITON_",
    "HF_HUB_",
    "HF_DATASETS_",
)
_ANYWHERE = (
    "VECLIB_MAXIMUM_THREADS GOTO_NUM_THREADS RAYON_NUM_THREADS POLARS_MAX_THREADS LOKY_MAX_CPU_COUNT"
    " PYTHONHASHSEED PYTHONWARNINGS PYTHONOPTIMIZE PYTHONUTF8 PYTHONIOENCODING PYTHONFAULTHANDLER PYTHONBREAKPOINT"
    " CUBLAS_WORKSPACE_CONFIG CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING NVIDIA_TF32_OVERRIDE NCCL_DEBUG"
    " KERAS_BACKEND TF_CPP_MIN_LOG_LEVEL TF_ENABLE_ONEDNN_OPTS TF_DETERMINISTIC_OPS TF_CUDNN_DETERMINISTIC"
    " TF_CUDNN_USE_AUTOTUNE TF_NUM_INTRAOP_THREADS TF_NUM_INTEROP_THREADS TF_FORCE_GPU_ALLOW_GROWTH TF_GPU_ALLOCATOR"
    " TF_XLA_FLAGS TF_USE_LEGACY_KERAS TOKENIZERS_PARALLELISM TRANSFORMERS_VERBOSITY HF_ENDPOINT USE_TORCH USE_TF"
    " USE_FLAX ACCELERATE_MIXED_PRECISION WANDB_MODE WANDB_PROJECT WANDB_ENTITY WANDB_DISABLED WANDB_SILENT"
)
NAMES = frozenset(_ANYWHERE.split())
# Variables that name devices, cores, folders or the network of this computer mean nothing on another one; nor do those
# that require a package that no script imports.
_DEVICES = "CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES"
_THIS_COMPUTER = (
    "OMP_PLACES OMP_PROC_BIND KMP_AFFINITY KMP_HW_SUBSET GOMP_CPU_AFFINITY OPENBLAS_CORETYPE OPENBLAS_L2_SIZE"
    " JAX_PLATFORMS JAX_PLATFORM_NAME"
    " PYTORCH_ENABLE_MPS_FALLBACK HF_HOME TRANSFORMERS_CACHE TRANSFORMERS_OFFLINE HF_HUB_OFFLINE HF_DATASETS_OFFLINE"
    " HF_HUB_ENABLE_HF_TRANSFER KERAS_HOME TFHUB_CACHE_DIR TFDS_DATA_DIR NLTK_DATA"
)
DEVICES = frozenset(_DEVICES.split())
HERE = DEVICES | frozenset(_THIS_COMPUTER.split())
_PLACE = re.compile(r".*_(?:HOME|CACHE|DIR|PATH|FILE|ROOT|FOLDER)")
# Launchers assign the ranks of processes.
_NEVER = re.compile(r"JAX_(?:COORDINATOR|PROCESS|NUM_PROCESSES|LOCAL_DEVICE).*|.*(?:_RANK|_WORLD_SIZE|_TOKEN\w*)")
# Commonly exported secrets that scripts look for: reported if they are not taken.
SECRETS = (
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "WANDB_API_KEY",
    "COMET_API_KEY",
    "NEPTUNE_API_TOKEN",
    "KAGGLE_KEY",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
)
_SECRET_NAME = re.compile(
    r"(?i)(?:.*_)?(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|API_?KEY|(?:ACCESS|SECRET|PRIVATE|ACCOUNT|STORAGE|SIGNING)_?KEY"
    r"|(?:DB|DATABASE|PG|POSTGRES|MYSQL|REDIS|MONGO|SMTP|MAIL|USER|ADMIN|ROOT)_PASS"
    r"|(?:AUTH|ACCESS|API|BEARER|REFRESH|SECRET|SESSION)_?TOKEN|CONNECTION_STRING)"
)
# Other keys and tokens have values that are names, as `SORT_KEY=loss` and `PAD_TOKEN=<pad>`.
_MAY_BE_SECRET = re.compile(r"(?i)(?:.*_)?(?:KEY|TOKEN)=(?=(?:\D*\d){3})(?=(?:[^a-z]*[a-z]){3})[a-z0-9+/]{12,}={0,2}")
_LONGEST = 4096


class FromShell(NamedTuple):
    """What is taken: anywhere, and only on this computer itself; and what is not, with the reason."""

    everywhere: Mapping[str, str]
    here: Mapping[str, str]
    notes: tuple[str, ...] = ()


def take(environ: Mapping[str, str], given: Collection[str], secrets: Collection[str], source: Path) -> FromShell:
    """`given` are variables that the job sets itself, which wins; `secrets` are the names of its secrets."""
    everywhere, here, notes = dict[str, str](), dict[str, str](), list[str]()
    for name in sorted(environ.keys() - set(given) - set(secrets)):
        value = environ[name]
        if not _is_listed(name) or not value:
            continue
        if kind := secret_kind(name, value):
            notes.append(f"`{name}` is not taken from your shell: it contains a secret ({kind}); {hint(name)}")
        elif len(value) <= _LONGEST and encodable(value) and "\n" not in value:
            (here if _is_here(name, value) else everywhere)[name] = value
    if path := _imports(environ.get("PYTHONPATH", ""), source):
        here |= {"PYTHONPATH": path} if "PYTHONPATH" not in given else {}
    left = [name for name in SECRETS if environ.get(name) and name not in {*given, *secrets}]
    notes += [f"`{name}` is not taken from your shell, because it is a secret: {hint(name)}" for name in left]
    return FromShell(everywhere, here, tuple(notes))


def belongs_to_runs(name: str) -> bool:
    """Each run brings its own value, or none: a server must not keep one from its start."""
    return _is_listed(name)


def secret_kind(name: str, value: str) -> str:
    """The kind of secret in a variable, as text; empty if there is none."""
    if value and (name in SECRETS or _SECRET_NAME.fullmatch(name) or _MAY_BE_SECRET.fullmatch(f"{name}={value}")):
        return f"value of `{name}`"
    found = secrets_in(f"{name}={value}\n".encode(errors="replace"), FileKind.SETTINGS)
    return found[0].kind if found else ""


def hint(name: str) -> str:
    return f"list it under `secrets:` in the job, for example with `--set 'secrets=[{name}]'`"


def _is_listed(name: str) -> bool:
    return (name in NAMES or name in HERE or name.startswith(BEGINNINGS)) and not _NEVER.fullmatch(name)


def _is_here(name: str, value: str) -> bool:
    return name in HERE or bool(_PLACE.fullmatch(name)) or value.startswith(("/", "~"))


def _imports(value: str, source: Path) -> str:
    """`PYTHONPATH` for a copy of the source: paths inside the source become relative to it."""
    parts = []
    for part in value.split(os.pathsep) if value and encodable(value) else ():
        path = Path(part)
        inside = part and path.is_absolute() and path.is_relative_to(source)
        parts.append(str(path.relative_to(source)) if inside else part)
    return os.pathsep.join(part for part in parts if part)


# The file that `env_file` names: `NAME=value` lines, as docker, direnv and dotenv write them.

_MOST_BYTES = 1_000_000
_LINE = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*(?P<equals>=)?(?P<rest>.*)", re.ASCII)
_QUOTED = re.compile(r"""\s*(?:'(?P<plain>[^']*)'|"(?P<escaped>(?:[^"\\]|\\.)*)")\s*(?:#.*)?""", re.S)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class EnvFile(NamedTuple):
    """Variables by name. `secrets` are those that the job lists as secrets: only the script gets them."""

    variables: Mapping[str, str] = {}
    secrets: Mapping[str, str] = {}


def read_env_file(path: Path, secrets: Collection[str], environ: Mapping[str, str]) -> EnvFile:
    """A name without `=` is read from the environment. Raises JobInvalid if the file is not readable, and BadInput with
    the line if it is invalid, or contains a secret that the job does not list."""
    variables, kept = dict[str, str](), dict[str, str]()
    for line, name, value in _assignments(_text(path), path, environ):
        if name in secrets:
            kept[name] = value
            continue
        if name.startswith("STOKER_"):
            raise BadInput(f"{path}:{line}: `{name}` is reserved for Stoker", hint="remove the line from the file")
        if kind := secret_kind(name, value):
            raise BadInput(
                f"{path}:{line}: `{name}` looks like a secret ({kind}), and `env_file` is stored with the run",
                hint=f"{hint(name)}: its value is then read from this file, and not stored",
                cause=Cause.SECRET_FOUND,
            )
        variables[name] = value
    return EnvFile(variables, kept)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES or b"\0" in data:
            raise ValueError(f"expected a text of at most {_MOST_BYTES:,} bytes")
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise JobInvalid([Problem("env_file", f"`{path}`", f"a file with lines `NAME=value`: {reason}")]) from None


def _assignments(text: str, path: Path, environ: Mapping[str, str]) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        bare = found and not found["equals"] and not found["rest"].strip()
        if not found or not (found["equals"] or bare):
            raise BadInput(f"{path}:{number}: expected `NAME=value`", hint="a comment begins with `#`")
        if not bare:
            yield number, found["name"], _value(found["rest"], f"{path}:{number}")
        elif found["name"] in environ:
            yield number, found["name"], environ[found["name"]]


def _value(text: str, where: str) -> str:
    """Quoted, or to the end of the line without a comment. Nothing is expanded: `$HOME` stays as it is."""
    if text.lstrip()[:1] in ("'", '"'):
        quoted = _QUOTED.fullmatch(text)
        if not quoted:
            raise BadInput(f"{where}: a quote is not closed, or something follows it")
        if quoted["plain"] is not None:
            return quoted["plain"]
        return re.sub(r"\\(.)", lambda one: _ESCAPES.get(one[1], one[1]), quoted["escaped"])
    return re.sub(r"(?:^|\s)#.*", "", text).strip()


_TIME_OUT_S = 2.0
_GRACE_S = 0.2  # to read the output of a git that ended long ago
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REF = "ref: "


class GitLook:
    """A query of a repository, which runs in the background until `facts` is called."""

    def __init__(self, root: Path) -> None:
        self._until = time.monotonic() + _TIME_OUT_S
        folder = _git_folder(root.absolute())
        self._status = _start(root, "status", "--porcelain", "--no-renames", "--", ".") if folder else None
        self._head = (_head(folder) or _asked_head(root, self._until)) if folder and self._status else None
        self._facts: Git | None = None

    def facts(self) -> Git | None:
        """Blocks until two seconds after the start, at most. A tree not known to be clean is called dirty."""
        if self._status:
            changes = _answer(self._status, self._until)
            self._status = None
            if self._head:
                commit, branch = self._head
                self._facts = Git(commit, branch, dirty=changes != b"")
        return self._facts


def _git_folder(root: Path) -> Path | None:
    for folder in (root, *root.parents):
        git = folder / ".git"
        if git.is_dir():
            return git
        if git.is_file():  # a worktree or a submodule
            return folder / _git_text(git).removeprefix("gitdir:").strip()
    return None


def _head(folder: Path) -> tuple[str, str] | None:
    """Commit and branch from git's own files; None if they are stored in another way."""
    head = _git_text(folder / "HEAD").strip()
    ref = head.removeprefix(_REF) if head.startswith(_REF) else ""
    commit = _commit(folder, ref) if ref else head
    return (commit, ref.removeprefix("refs/heads/")) if _COMMIT.fullmatch(commit) else None


def _commit(folder: Path, ref: str) -> str:
    shared = folder / (_git_text(folder / "commondir").strip() or ".")  # a worktree shares the refs of its repository
    loose = (_git_text(folder / ref) or _git_text(shared / ref)).strip()
    if loose:
        return loose
    packed = re.search(rf"^([0-9a-f]+) {re.escape(ref)}$", _git_text(shared / "packed-refs"), re.MULTILINE)
    return packed[1] if packed else ""


def _asked_head(root: Path, until: float) -> tuple[str, str] | None:
    git = _start(root, "rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    words = (_answer(git, until) or b"").decode().split() if git else []
    if len(words) != 2:
        return None
    commit, branch = words
    return commit, "" if branch == "HEAD" else branch


def _start(root: Path, *words: str) -> Popen[bytes] | None:
    import subprocess  # 5 ms, and needed only for a repository

    quiet = subprocess.DEVNULL
    command = ["git", "--no-optional-locks", "-C", str(root), *words]  # never blocks the user's own git
    try:
        return subprocess.Popen(command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet)
    except OSError:
        return None


def _answer(git: Popen[bytes], until: float) -> bytes | None:
    """git's output; None if it failed or timed out."""
    import subprocess  # loaded by `_start`

    try:
        said, _ = git.communicate(timeout=max(until - time.monotonic(), _GRACE_S))
    except subprocess.TimeoutExpired:
        git.kill()
        git.communicate()
        return None
    return said if git.returncode == 0 else None


def _git_text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""
