"""Only the page itself may ask for an act: a token of the person in a header, and where the browser says it comes from.

The cookie of a login goes along with whatever a foreign page lets the browser send. So an act needs a header that only a page of
the same origin can read the value for and can set: a form cannot. The browser's own word of the origin is checked first, in the
order of Go's `net/http.CrossOriginProtection`: `Sec-Fetch-Site` where the browser sends it, else `Origin` against `Host`; who
sends neither is no browser, so nobody's login is misused.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer

from rivertwice.errors import RequestError

HEADER = "X-Rivertwice-CSRF"
LIFE_S = 8 * 3600
_SALT = "rivertwice acts"


def make_token(secret: str, user: str) -> str:
    """Return a token for a person, signed with the API server's secret."""
    return str(URLSafeTimedSerializer(secret, salt=_SALT).dumps(user))


def check_token(secret: str, user: str, token: str | None) -> None:
    """Check a token.

    Raises:
        RequestError: there is none, it is another person's, it is not ours, or it is older than 8 hours.
    """
    if not token:
        message = f"the request has no header {HEADER}, so it is not known to come from the page; nothing was started"
        raise RequestError(message)
    try:
        owner = URLSafeTimedSerializer(secret, salt=_SALT).loads(token, max_age=LIFE_S)
    except SignatureExpired:
        message = f"the page's token is older than {LIFE_S // 3600} hours; nothing was started; load the page again"
        raise RequestError(message) from None
    except BadSignature:
        message = "the page's token was not made by this server; nothing was started; load the page again"
        raise RequestError(message) from None
    if owner != user:
        message = "the page's token belongs to another login; nothing was started; load the page again"
        raise RequestError(message)


def check_origin(headers: Mapping[str, str]) -> None:
    """Check where a request comes from. Pure.

    Args:
        headers: of the request, names in lower case.

    Raises:
        RequestError: another origin, or a body that a plain form of another page could send.
    """
    site, origin, host = headers.get("sec-fetch-site"), headers.get("origin"), headers.get("host", "")
    if site is not None:
        if site != "same-origin":
            message = f"the request comes from another page (Sec-Fetch-Site: {site[:40]}); nothing was started"
            raise RequestError(message)
    elif origin is not None and urlsplit(origin).netloc != host:
        message = f"the request comes from {origin[:80]}, not from {host[:80]}; nothing was started"
        raise RequestError(message)
    if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        message = "the body of the request is not application/json, so a form of another page could send it; nothing was started"
        raise RequestError(message)
