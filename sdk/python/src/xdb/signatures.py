"""Makes and checks the signatures of calls, by the Standard Webhooks specification, over the unchanged bytes of the body."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence

PREFIX = "whsec_"


class BadSignature(Exception):
    """The signature of a call is missing or wrong, or the call is too old."""


def key_of(secret: str) -> bytes:
    """The key of a secret: base64 after `whsec_`, padded or not, otherwise the bytes of the text. Raises `ValueError`."""
    if secret.startswith(PREFIX):
        text = secret[len(PREFIX) :].strip().rstrip("=")
        try:
            key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError('the secret is not base64 after "whsec_": copy all of it') from None
    else:
        key = secret.encode()
    if not key:
        raise ValueError("the secret is empty: set the environment variable that it comes from")
    return key


def sign(key: bytes, id: str, timestamp: str, body: bytes) -> str:
    """One signature, as in the header `webhook-signature`."""
    digest = hmac.new(key, b".".join((id.encode(), timestamp.encode(), body)), hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def verify(keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, now: float, tolerance: float) -> None:
    """Raises `BadSignature` unless a signature in the headers was made with one of the keys, at most `tolerance` seconds before `now`.

    Names of headers are in lower case.
    """
    id, timestamp = headers.get("webhook-id"), headers.get("webhook-timestamp")
    signatures = headers.get("webhook-signature")
    if not id or not timestamp or not signatures:
        raise BadSignature("the call is not signed: register the worker with the secret= that it has here")
    if not timestamp.isascii() or not timestamp.isdecimal():
        raise BadSignature(f"webhook-timestamp {timestamp[:40]!r} is not a number of seconds")
    age = now - int(timestamp[:20])
    if abs(age) > tolerance:
        when = f"{age:.0f} s old" if age > 0 else f"{-age:.0f} s in the future"
        raise BadSignature(f"the call is {when}, and the limit is {tolerance:g} s: compare the clocks of both machines")
    if headers.get("idempotency-key") != id:
        raise BadSignature("webhook-id differs from Idempotency-Key")
    given = [each.encode() for each in signatures.split() if each.startswith("v1,")]
    # One digest for each key, even if an attacker sends many signatures. All are compared, so that the time reveals nothing.
    expected = [sign(key, id, timestamp, body).encode() for key in keys]
    right = [hmac.compare_digest(one, each) for one in expected for each in given]
    if not any(right):
        raise BadSignature(
            "no signature matches: the worker is registered with another secret, or a proxy has changed the body"
        )
