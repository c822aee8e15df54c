"""Listeners of the shared broker that ask for a login, one of them with TLS on both sides; and settings that use them."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rivertwice.core.kafka_security import KafkaSecurity
from rivertwice.core.settings import Settings

USER = "river twice"
CORE = "canary-kafka-5d1f"
PASSWORD = f'q"uo\\te {CORE}'  # what would end Java's login text if it were not quoted
PLAIN_USER, PLAIN_PASSWORD = "plain", f"{CORE}-plain"
ENV = {"RIVERTWICE_KAFKA_PASSWORD": PASSWORD}


@dataclass(frozen=True)
class SecureListeners:
    """Ports and files of the listeners.

    Attributes:
        sasl: port of SASL_PLAINTEXT, with PLAIN and SCRAM.
        tls: port of SASL_SSL, with SCRAM, where clients must show a certificate too.
        folder: holds ca.pem, server.pem, client.pem.
    """

    sasl: int
    tls: int
    folder: Path

    def settings(self, settings: Settings) -> Settings:
        """Return settings that log in over TLS with both certificates; the password is in `ENV`."""
        security = KafkaSecurity(
            "SASL_SSL", "SCRAM-SHA-512", USER, ca=self.folder / "ca.pem", certificate=self.folder / "client.pem"
        )
        return replace(settings, bootstrap=f"127.0.0.1:{self.tls}", kafka=security)

    def plain_settings(self, settings: Settings) -> Settings:
        """Return settings that log in without TLS, the password in a file."""
        security = KafkaSecurity("SASL_PLAINTEXT", "PLAIN", PLAIN_USER, password_file=self.folder / "password")
        return replace(settings, bootstrap=f"127.0.0.1:{self.sasl}", kafka=security)

    def properties(self) -> dict[str, str]:
        """Return what the broker must be told."""
        addresses = f"LOGIN://127.0.0.1:{self.sasl},SECURE://127.0.0.1:{self.tls}"
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        plain = (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{PLAIN_USER}="{PLAIN_PASSWORD}";'
        )
        return {
            "listeners": addresses,
            "advertised.listeners": addresses,
            "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT,SECURE:SASL_SSL",
            "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.login.plain.sasl.jaas.config": plain,
            "listener.name.login.scram-sha-512.sasl.jaas.config": scram,
            "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.secure.scram-sha-512.sasl.jaas.config": scram,
            "listener.name.secure.ssl.keystore.type": "PEM",
            "listener.name.secure.ssl.keystore.location": str(self.folder / "server.pem"),
            "listener.name.secure.ssl.truststore.type": "PEM",
            "listener.name.secure.ssl.truststore.location": str(self.folder / "ca.pem"),
            "listener.name.secure.ssl.client.auth": "required",
        }


def make_files(folder: Path, address: str = "127.0.0.1") -> Path:
    """Make the certificates, the keys and the password's file in a new folder; return it.

    Args:
        address: of the host that the certificates are for, or its name.
    """
    folder.mkdir()
    key, ca = _certify("ca", None, address)
    (folder / "ca.pem").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    for name in ("server", "client"):
        own, certificate = _certify(name, (key, ca), address)
        private = own.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / f"{name}.pem").write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "password").write_text(f"{PLAIN_PASSWORD}\n")
    return folder


def create_user(bootstrap: str, options: Mapping[str, str] | None = None) -> None:
    """Create the SCRAM user through the listener that asks for no login."""
    client = AdminClient({"bootstrap.servers": bootstrap, **(options or {})})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    for answer in client.alter_user_scram_credentials([change]).values():
        answer.result(20)


def _certify(
    name: str, signer: tuple[ec.EllipticCurvePrivateKey, x509.Certificate] | None, host: str
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    by, issuer = (key, subject) if signer is None else (signer[0], signer[1].subject)
    now = datetime.now(UTC)
    is_address = host.replace(".", "").isdigit()
    address = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address(host)) if is_address else x509.DNSName(host)]
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
    )
    return key, made.sign(by, hashes.SHA256())
