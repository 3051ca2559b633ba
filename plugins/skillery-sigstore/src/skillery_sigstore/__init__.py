"""The verifier of Sigstore bundles `offline`: it uses a trusted root on the disk, and makes no request."""

from __future__ import annotations

import logging
import threading
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from skillery import hookimpl
from skillery.backends import Offer, Place, SigstoreIdentity, SigstoreVerifier
from skillery.errors import InvalidParams, StartupError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from sigstore.verify import Verifier

log = logging.getLogger(__name__)
ISSUER, FORMER_ISSUER = "1.3.6.1.4.1.57264.1.8", "1.3.6.1.4.1.57264.1.1"
"""The extensions of Fulcio's certificates with the issuer: as a UTF8String in DER, and as plain bytes."""


class SigstoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the verifier, from `[backends.sigstore.offline]`."""

    trusted_root: str = ""
    """A file with the trusted root of another Sigstore instance. Empty means that of the public one (sigstore.dev)."""


class OfflineVerifier(SigstoreVerifier):
    """See `skillery.backends.SigstoreVerifier`."""

    def __init__(self, trusted_root: Path) -> None:
        self._trusted_root = trusted_root
        self._verifier: Verifier | None = None
        self._lock = threading.Lock()

    def verify(self, bundle: str, sha256: str) -> SigstoreIdentity:
        verifier = self._loaded()
        from sigstore.errors import Error
        from sigstore.hashes import Hashed
        from sigstore.models import Bundle
        from sigstore_models.common.v1 import HashAlgorithm

        signer = _Signer()
        try:
            signed = Hashed(algorithm=HashAlgorithm.SHA2_256, digest=bytes.fromhex(sha256))
            verifier.verify_artifact(signed, Bundle.from_json(bundle), signer)
        except Error as error:
            raise _refused(" ".join(str(error).split())[:300]) from None
        except Exception as error:  # sigstore raises errors of many libraries for a malformed bundle
            log.info("a Sigstore bundle cannot be read", exc_info=error)
            raise _refused("it cannot be read") from None
        return signer.identity

    def _loaded(self) -> Verifier:
        """Return the verifier. The first call loads sigstore, which takes seconds."""
        with self._lock:
            if self._verifier is None:
                from sigstore.models import TrustedRoot
                from sigstore.verify import Verifier

                self._verifier = Verifier(trusted_root=TrustedRoot.from_file(str(self._trusted_root)))
            return self._verifier


class _Signer:
    """A policy of sigstore that accepts each identity, and keeps it. It is called after the certificate is verified."""

    identity: SigstoreIdentity

    def verify(self, cert: Certificate) -> None:
        from cryptography.x509 import SubjectAlternativeName

        [name] = cert.extensions.get_extension_for_class(SubjectAlternativeName).value
        if not isinstance(name.value, str):
            raise ValueError(f"the certificate names its subject in another way: {name!r}")
        self.identity = SigstoreIdentity(_issuer_of(cert), name.value)


def _issuer_of(certificate: Certificate) -> str:
    from cryptography.hazmat import asn1
    from cryptography.x509 import UnrecognizedExtension

    values = {
        extension.oid.dotted_string: extension.value.value
        for extension in certificate.extensions
        if isinstance(extension.value, UnrecognizedExtension)
    }
    return asn1.decode_der(str, values[ISSUER]) if ISSUER in values else values[FORMER_ISSUER].decode()


def _refused(reason: str) -> InvalidParams:
    hint = "Sign the .files of exactly this version: sigstore sign FILE, or cosign sign-blob --bundle."
    return InvalidParams(f"the Sigstore bundle is not valid: {reason}", hint=hint, param="envelope")


def open_verifier(settings: SigstoreSettings, _place: Place) -> OfflineVerifier:
    """Return the verifier. Raise StartupError if there is no trusted root."""
    if not settings.trusted_root:
        # sigstore itself reads a copy in the cache of the user, which other programs of this user may write.
        own = files("sigstore") / "_store" / "https%3A%2F%2Ftuf-repo-cdn.sigstore.dev" / "trusted_root.json"
        return OfflineVerifier(Path(str(own)))
    path = Path(settings.trusted_root).expanduser()
    try:
        msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise StartupError(f"[backends.sigstore.offline] trusted_root: {path} cannot be read: {reason}") from None
    return OfflineVerifier(path)


@hookimpl
def skillery_sigstore() -> Offer:
    return Offer("offline", open_verifier, SigstoreSettings)
