"""A broker that lets in whoever shows a token that an endpoint of the test's own has signed."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from servers.schema_registry import TokenServer

AUDIENCE = "the-test-s-kafka"
KEY_ID = "k1"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
ALLOWED = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls="


@dataclass
class SignedTokens(TokenServer):
    """Gives JSON Web Tokens, signed with a key of its own.

    Attributes:
        audience: for whom they are.
    """

    audience: str = AUDIENCE
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))

    def token(self) -> str:
        """Return a token that is good for five minutes."""
        now = int(time.time())
        claims = {"sub": self.client, "aud": self.audience, "scope": self.scope, "iat": now, "exp": now + 300}
        head = {"alg": "RS256", "typ": "JWT", "kid": KEY_ID}
        text = ".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
        return f"{text}.{_encoded(self.key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def keys(self) -> dict[str, Any]:
        """Return the public key as a set of JSON Web Keys."""
        numbers = self.key.public_key().public_numbers()
        public = {
            name: _encoded(number.to_bytes((number.bit_length() + 7) // 8, "big"))
            for name, number in (("n", numbers.n), ("e", numbers.e))
        }
        return {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": KEY_ID, **public}]}


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token_properties(port: int, keys: Path) -> dict[str, str]:
    """Return what the broker must be told: a listener that checks tokens against the keys in a file."""
    address, name = f"TOKENS://127.0.0.1:{port}", "listener.name.tokens"
    return {
        "listeners": address,
        "advertised.listeners": address,
        "listener.security.protocol.map": "TOKENS:SASL_PLAINTEXT",
        f"{name}.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{name}.oauthbearer.sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required;",
        f"{name}.oauthbearer.sasl.server.callback.handler.class": f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
        f"{name}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        f"{name}.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
    }
