"""A Dockerfile that makes the same image as Belljar would, for those who build in their own CI."""

from __future__ import annotations

import shlex

from belljar.backends.docker.images.build_inputs import USER_ID
from belljar.backends.docker.images.build_script import ROOT
from belljar.backends.docker.images.key import Wanted, without_password
from belljar.environment.environment import BUILTIN
from belljar.environment.requirement import hide_secrets
from belljar.errors import InvalidOption
from belljar.text import printable

_TEMPLATE = """\
# The environment {name} as an image. Needs BuildKit. From the directory of this file{wheels}:
#
#   docker build -t NAME --build-arg BASE={base} \\
#     --secret id=ca,src=CA_BUNDLE.pem --secret id=index,src=INDEX.env .
#
# Both secrets may be left out, and become part of no layer. CA_BUNDLE.pem: certificates to trust.
# INDEX.env: where packages come from, a line each, such as UV_DEFAULT_INDEX='https://...'.
# Then: Sandbox(image="NAME"{preload})

ARG BASE={base}
FROM ${{BASE}}
USER 0:0
RUN --mount=type=tmpfs,target=/tmp \\
    --mount=type=secret,id=ca \\
    --mount=type=secret,id=index \\
{mounts}    set -eu; umask 022; \\
    if [ -e /run/secrets/ca ]; then \\
        export SSL_CERT_FILE=/run/secrets/ca PIP_CERT=/run/secrets/ca; \\
    fi; \\
    if [ -e /run/secrets/index ]; then set -a; . /run/secrets/index; set +a; fi; \\
    export UV_CACHE_DIR=/opt/.uv-cache UV_PYTHON_DOWNLOADS=never PATH="/tmp/uv/bin:$PATH"; \\
    command -v uv >/dev/null || python3 -m pip install --quiet --target /tmp/uv uv; \\
    uv venv --python python3 {root}; \\
    printf '%s\\n' {packages} > /tmp/requirements.in; \\
    uv pip compile --python {root}/bin/python --generate-hashes --no-header --no-annotate \\
        {only_wheels}--quiet -o {root}/belljar.lock /tmp/requirements.in >/dev/null; \\
    uv pip install --python {root}/bin/python {only_wheels}-r {root}/belljar.lock; \\
    rm -rf "$UV_CACHE_DIR"; \\
    {root}/bin/python -m compileall -qq -j 0 --invalidation-mode unchecked-hash \\
        -x /tests/ {root}/lib || true; \\
    mkdir -p /workspace; chown {uid}:{uid} /workspace
ENV PATH={root}/bin:$PATH VIRTUAL_ENV={root}
WORKDIR /workspace
USER {uid}:{uid}
ENTRYPOINT []
CMD ["{root}/bin/python"]
"""


def written(wanted: Wanted) -> str:
    """The text. Passwords in addresses of packages are left out."""
    environment = wanted.environment
    if not environment.packages:
        raise InvalidOption(
            f"environment {environment.name!r} has no packages: {wanted.base} is its image"
        )
    wheels = [hide_secrets(each) for each in environment.packages if each.startswith("/")]
    packages = [
        f"/run/wheels/{hide_secrets(each)}" if each.startswith("/") else without_password(each)
        for each in environment.packages
    ]
    preload = ""
    if BUILTIN.get(environment.name) == environment:
        preload = f", environment={environment.name!r}"
    elif environment.preload:
        modules = list(environment.preload)
        preload = f", environment=Environment({environment.name!r}, preload={modules!r})"
    mounts = "".join(
        f"    --mount=type=bind,source={each},target=/run/wheels/{each} \\\n" for each in wheels
    )
    return _TEMPLATE.format(
        name=printable(environment.name),
        wheels=f", with {', '.join(wheels)} in it" if wheels else "",
        base=wanted.base,
        preload=preload,
        mounts=mounts,
        packages=" ".join(map(shlex.quote, packages)),
        only_wheels="" if environment.allow_builds else "--only-binary :all: ",
        root=ROOT,
        uid=USER_ID,
    )
