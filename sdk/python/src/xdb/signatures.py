"""Signatures of calls after Standard Webhooks, over the bytes of the body as they came."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence

PREFIX = "whsec_"


class BadSignature(Exception):
    """A call that nobody who knows the secret has sent, or one that is too old."""


def key_of(secret: str) -> bytes:
    """The key of a secret: base64 after `whsec_`, padded or not, or else the bytes of the text."""
    if secret.startswith(PREFIX):
        text = secret[len(PREFIX) :].strip().rstrip("=")
        try:
            key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError('the secret is not base64 after "whsec_"') from None
    else:
        key = secret.encode()
    if not key:
        raise ValueError("the secret is empty: is the environment variable set that it comes from?")
    return key


def sign(key: bytes, id: str, timestamp: str, body: bytes) -> str:
    """One signature, as it stands in the header."""
    digest = hmac.new(key, b".".join((id.encode(), timestamp.encode(), body)), hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def verify(keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, now: float, tolerance: float) -> None:
    """Raises BadSignature unless one of the header's signatures is that of one of the keys. Names are in lower case."""
    id, timestamp = headers.get("webhook-id"), headers.get("webhook-timestamp")
    signatures = headers.get("webhook-signature")
    if not id or not timestamp or not signatures:
        raise BadSignature("the call is not signed: register the worker with the secret that it has here")
    if not timestamp.isascii() or not timestamp.isdecimal():
        raise BadSignature("webhook-timestamp is no number of seconds")
    age = now - int(timestamp[:20])
    if abs(age) > tolerance:
        when = f"{age:.0f} s old" if age > 0 else f"{-age:.0f} s in the future"
        raise BadSignature(f"the call is {when}, more than {tolerance:g} s: compare the clocks of both machines")
    if headers.get("idempotency-key") != id:
        raise BadSignature("webhook-id is not the Idempotency-Key")
    given = [each.encode() for each in signatures.split() if each.startswith("v1,")]
    # Once for each key, however many signatures a stranger has sent. All are compared, so that the time says nothing of
    # which was nearly right.
    expected = [sign(key, id, timestamp, body).encode() for key in keys]
    right = [hmac.compare_digest(one, each) for one in expected for each in given]
    if not any(right):
        raise BadSignature(
            "no signature is right: the worker was registered with another secret, or something between has changed the body"
        )
