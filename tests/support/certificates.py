"""Certificates for tests of TLS, made by the openssl command."""

import ssl
import subprocess


def openssl(directory, *arguments):
    done = subprocess.run(["openssl", *arguments], cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def make(directory):
    """ca.pem, and what it signed: a server at 127.0.0.1, and a client (cert.pem, key.pem)."""
    directory.mkdir()
    request = ["req", "-x509", *KEY, "-days", "2"]
    openssl(directory, *request, "-keyout", "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=test")
    for name, extension in [
        ("server", "subjectAltName=IP:127.0.0.1"),
        ("client", "extendedKeyUsage=clientAuth"),
    ]:
        keys = ["-keyout", f"{name}-key.pem", "-out", f"{name}.csr"]
        openssl(directory, "req", *KEY, *keys, "-subj", f"/CN={name}")
        (directory / "extension").write_text(extension)
        signer = ["-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-days", "2"]
        paths = ["-in", f"{name}.csr", "-out", f"{name}.pem", "-extfile", "extension"]
        openssl(directory, "x509", "-req", *paths, *signer)
    (directory / "client.pem").rename(directory / "cert.pem")
    (directory / "client-key.pem").rename(directory / "key.pem")
    return directory


def server_context(directory):
    """For a server that wants a certificate of its clients, as dockerd --tlsverify does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem", directory / "server-key.pem")
    context.load_verify_locations(directory / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context
