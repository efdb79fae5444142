# Three images from one file: coordinator (without torch), agent, and caddy, the reverse proxy with our configuration.
#   docker build --target coordinator .
#   docker build --target agent .                                                     CPU build of torch
#   docker build --target agent --build-arg TORCH_INDEX=https://pypi.org/simple .     CUDA build of torch
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm
ARG CADDY_IMAGE=caddy:2.11.4-alpine

# Dependencies follow from the lock files alone, so a change of our code installs none of them again. Every file that
# pip takes, from whichever index, has one of the hashes there.
FROM ${PYTHON_IMAGE} AS dependencies
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_ONLY_BINARY=:all: PIP_REQUIRE_HASHES=1
RUN python -m venv /opt/tessera
ENV PATH=/opt/tessera/bin:$PATH
WORKDIR /source
COPY requirements requirements

FROM dependencies AS wheel
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY schemas schemas
COPY coordinator coordinator
COPY client_agent client_agent
COPY studies studies
COPY migrations migrations
RUN PIP_REQUIRE_HASHES=0 pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /wheels .

FROM dependencies AS coordinator-installed
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install -r requirements/coordinator.txt
COPY --from=wheel /wheels /wheels
RUN PIP_REQUIRE_HASHES=0 pip install --no-deps --no-index /wheels/*.whl

FROM dependencies AS agent-installed
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# First torch, from its own index; the rest then finds it installed, and has the CUDA libraries if it needs them.
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps --index-url "${TORCH_INDEX}" -r requirements/torch.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install -r requirements/agent.txt $(python requirements/cuda_of_torch.py)
COPY --from=wheel /wheels /wheels
RUN PIP_REQUIRE_HASHES=0 pip install --no-deps --no-index /wheels/*.whl

# The user has a fixed number and a name: volumes keep the number, and torch asks for the name.
FROM ${PYTHON_IMAGE} AS runtime
ARG VERSION=unreleased
ARG REVISION=unknown
LABEL org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.revision=${REVISION}
RUN groupadd --gid 10001 tessera \
    && useradd --uid 10001 --gid tessera --home-dir /var/lib/tessera --create-home --shell /usr/sbin/nologin tessera \
    && install -d -o tessera -g tessera -m 0700 /run/enrolment /run/enrolment/aster /run/enrolment/cedar
ENV PATH=/opt/tessera/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /var/lib/tessera
USER 10001:10001

FROM runtime AS coordinator
LABEL org.opencontainers.image.title="Tessera coordinator" \
      org.opencontainers.image.description="Personalised federated fine-tuning of language models: the service"
COPY --from=coordinator-installed /opt/tessera /opt/tessera
ENV TESSERA_HOST=0.0.0.0
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 CMD ["tessera", "ready"]
ENTRYPOINT ["tessera"]
CMD ["serve"]

FROM runtime AS agent
LABEL org.opencontainers.image.title="Tessera agent" \
      org.opencontainers.image.description="Personalised federated fine-tuning of language models: a silo's agent"
COPY --from=agent-installed /opt/tessera /opt/tessera
ENV TESSERA_AGENT_FOLDER=/var/lib/tessera/agent HF_HOME=/var/lib/tessera/hub
VOLUME /var/lib/tessera
HEALTHCHECK --interval=60s --timeout=30s --start-period=120s --retries=3 CMD ["tessera", "agent", "status"]
ENTRYPOINT ["tessera", "agent"]
CMD ["run"]

# The image's binary carries a file capability, and cannot be executed at all where every capability is dropped.
# A copy carries none; it needs none, because it listens above port 1024.
FROM ${CADDY_IMAGE} AS caddy
RUN cp /usr/bin/caddy /usr/bin/caddy-copy && mv /usr/bin/caddy-copy /usr/bin/caddy \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/caddy /run/authority
COPY deploy/Caddyfile /etc/caddy/Caddyfile
ENV XDG_DATA_HOME=/var/lib XDG_CONFIG_HOME=/tmp
EXPOSE 8080 8443
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8081/"]
USER 10001:10001
ENTRYPOINT ["caddy", "run", "--config", "/etc/caddy/Caddyfile"]
CMD []
