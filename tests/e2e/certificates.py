"""Authorities and certificates for tests, as files, and how clients are told of them."""

import datetime
import ssl

import grpc
import trustme

NAMES = ("localhost", "127.0.0.1")


class Authority:
    """Signs certificates and writes them into `folder`."""

    def __init__(self, folder, name):
        self.ca, self.folder, self.count = trustme.CA(), folder, 0
        self.path = folder / f"{name}-ca.pem"
        self.ca.cert_pem.write_to_path(self.path)

    def issue(self, days=1):
        """Files of a new certificate and its key; with negative days it has expired."""
        now = datetime.datetime.now(datetime.timezone.utc)
        begin = now - datetime.timedelta(days=30)
        issued = self.ca.issue_cert(
            *NAMES, not_before=begin, not_after=now + datetime.timedelta(days=days)
        )
        self.count += 1
        stem = f"{self.path.stem}-{self.count}"
        cert, key = self.folder / f"{stem}.crt", self.folder / f"{stem}.key"
        cert.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return cert, key

    def context(self, identity=None):
        """For HTTP clients that trust this authority."""
        context = ssl.create_default_context(cafile=self.path)
        if identity is not None:
            context.load_cert_chain(*identity)
        return context

    def credentials(self, identity=None):
        """The same for gRPC."""
        cert, key = identity or (None, None)
        return grpc.ssl_channel_credentials(
            self.path.read_bytes(), key and key.read_bytes(), cert and cert.read_bytes()
        )


def tls_flags(identity, client_ca=None):
    """Flags of a server that presents this certificate."""
    cert, key = identity
    flags = ["--tls-cert", cert, "--tls-key", key]
    return flags if client_ca is None else [*flags, "--tls-client-ca", client_ca]
