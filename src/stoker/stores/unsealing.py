"""Opens what a server sealed: AES-256-GCM of the OpenSSL that this Python has.

Standard library only: agents carry this file. Python offers no cipher, but its `ssl` module is linked with OpenSSL's
libcrypto, whose functions `ctypes` can call. A Python that has it built in, as those of uv do, takes the system's;
where there is none, a second process with the same Python uses the package `cryptography`, which every server has.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from stoker.errors import Corrupt, NoCipher
from stoker.stores.signing import part

if TYPE_CHECKING:
    import ctypes

Open = Callable[[bytes, bytes, bytes, bytes], bytes | None]  # key, nonce, sealed with its tag, associated data

MARK = b"stoker-sealed-2\n"  # the form; another one gets another mark
NONCE_BYTES = 12
TAG_BYTES = 16
_CHILD_S = 30.0
_SET_TAG = 0x11  # EVP_CTRL_AEAD_SET_TAG
_CHILD = """
import json, sys
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
key, nonce, sealed, about = map(bytes.fromhex, json.load(sys.stdin))
try:
    print(AESGCM(key).decrypt(nonce, sealed, about).hex())
except InvalidTag:
    print("no")
"""


def unseal(key: str, data: bytes, about: str) -> str:
    """Raises Corrupt where it was sealed with another key or about something else, or is damaged, and NoCipher where
    nothing on this machine can tell."""
    body = data.removeprefix(MARK)
    nonce, hidden = body[:NONCE_BYTES], body[NONCE_BYTES:]
    plain = None
    if body is not data and len(hidden) >= TAG_BYTES:
        plain = opener()(sealing_key(key), nonce, hidden, associated(about))
    if plain is None:
        raise Corrupt(f"`{about}` cannot be decrypted: it is damaged, or was encrypted for another node")
    return plain.decode()


def sealing_key(key: str) -> bytes:
    return part(key, b"seal AES-256-GCM")


def associated(about: str) -> bytes:
    return MARK + about.encode()


def opener() -> Open:
    """Raises NoCipher."""
    library = next(libraries(), None)
    return _through(library) if library else _in_a_child


def libraries() -> Iterator[ctypes.CDLL]:
    """The libcrypto that Python's own `ssl` is linked with, then the system's. The system's of macOS ends a process
    that loads it."""
    import ctypes  # here, because a node whose store is a folder opens nothing

    try:
        import _ssl

        own = getattr(_ssl, "__file__", None)
    except ImportError:
        own = None
    system = () if sys.platform == "darwin" else ("libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so")
    for name in (own, *system):
        try:
            library = ctypes.CDLL(name) if name else None
            if library is not None and hasattr(library, "EVP_aes_256_gcm"):
                yield library
        except OSError:
            continue


def _through(library: ctypes.CDLL) -> Open:
    from ctypes import POINTER, byref, c_char_p, c_int, c_void_p, create_string_buffer

    def bound(name: str, result: type | None, *kinds: object) -> Callable[..., int]:
        function = getattr(library, name)
        function.restype, function.argtypes = result, list(kinds)
        return function  # type: ignore[no-any-return]  # what a foreign function is

    new = bound("EVP_CIPHER_CTX_new", c_void_p)
    free = bound("EVP_CIPHER_CTX_free", None, c_void_p)
    cipher = bound("EVP_aes_256_gcm", c_void_p)
    begin = bound("EVP_DecryptInit_ex", c_int, c_void_p, c_void_p, c_void_p, c_char_p, c_char_p)
    update = bound("EVP_DecryptUpdate", c_int, c_void_p, c_char_p, POINTER(c_int), c_char_p, c_int)
    control = bound("EVP_CIPHER_CTX_ctrl", c_int, c_void_p, c_int, c_int, c_char_p)
    end = bound("EVP_DecryptFinal_ex", c_int, c_void_p, c_char_p, POINTER(c_int))

    def opened(key: bytes, nonce: bytes, sealed: bytes, about: bytes) -> bytes | None:
        """Nothing of it is returned before its tag was checked."""
        hidden, tag = sealed[:-TAG_BYTES], sealed[-TAG_BYTES:]
        out, rest, size = create_string_buffer(len(hidden) + 1), create_string_buffer(TAG_BYTES), c_int(0)
        context = new()
        if not context:
            raise MemoryError("libcrypto has no room for a cipher")
        try:
            ready = begin(context, cipher(), None, key, nonce) == 1
            ready = ready and update(context, None, byref(size), about, len(about)) == 1
            ready = ready and update(context, out, byref(size), hidden, len(hidden)) == 1
            ready = ready and control(context, _SET_TAG, TAG_BYTES, tag) == 1
            return out.raw[: len(hidden)] if ready and end(context, rest, byref(c_int(0))) == 1 else None
        finally:
            free(context)

    return opened


def _in_a_child(key: bytes, nonce: bytes, sealed: bytes, about: bytes) -> bytes | None:
    """What is secret goes through a pipe: arguments can be read by every user of the machine."""
    given = json.dumps([one.hex() for one in (key, nonce, sealed, about)])
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _CHILD], input=given, capture_output=True, text=True, timeout=_CHILD_S
        )
    except (OSError, subprocess.SubprocessError):
        done = None
    if done is None or done.returncode:
        raise NoCipher(
            f"the Python {sys.executable} of this node cannot decrypt what its server sent: it has neither OpenSSL's "
            "libcrypto nor the package `cryptography`",
            hint="install OpenSSL 3 on the machine, such as by `apt-get install libssl3`",
        )
    answer = done.stdout.strip()
    return None if answer == "no" else bytes.fromhex(answer)
