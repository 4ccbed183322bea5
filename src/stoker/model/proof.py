"""How a server shows that it knows the token, before a client sends it: by its answer to a number that is new."""

from __future__ import annotations

LEAST_NONCE, MOST_NONCE = 16, 128


def proof(token: str, nonce: str) -> str:
    """Whoever does not know the token cannot make it, and learns nothing of the token from it."""
    import hmac  # with OpenSSL behind it: clients need it only where a server listens on TCP

    return hmac.new(token.encode(), f"stoker server {nonce}".encode(), "sha256").hexdigest()
