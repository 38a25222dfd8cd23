# asyncli in a container: docker build -t asyncli . ; the agent alone: --target agent; without NumPy and SciPy: --target light.
# docs/containers.md describes how to run them.
# Not the slim image: the build needs git to determine the version.
FROM python:3.13 AS packages
RUN pip install --no-cache-dir "build>=1.2"
COPY . /src
RUN python -m build --outdir /dist /src && python -m build --wheel --outdir /dist /src/packaging/agent && \
    python -m build --wheel --outdir /dist /src/packaging/light

FROM packages AS agent-installed
RUN python -m venv /opt/agent && /opt/agent/bin/pip install --no-cache-dir /dist/asyncli_agent-*.whl

FROM packages AS light-installed
# --build-arg LIGHT="host,tls" makes a client host of a fleet; "runner" runs soaks.
ARG LIGHT="runner"
RUN python -m venv /opt/asyncli && /opt/asyncli/bin/pip install --no-cache-dir "$(ls /dist/asyncli_light-*.whl)[${LIGHT}]"

FROM packages AS installed
# --build-arg EXTRAS="[dask,otel]" adds extras.
ARG EXTRAS=""
RUN python -m venv /opt/asyncli && /opt/asyncli/bin/pip install --no-cache-dir "$(ls /dist/asyncli-*.whl)${EXTRAS}"

FROM python:3.13-slim AS agent
COPY --from=agent-installed /opt/agent /opt/agent
ENV PATH="/opt/agent/bin:$PATH"
# At its start it reports what it cannot read as this user. As root with SYS_PTRACE it reads everything.
USER 10001
ENTRYPOINT ["asyncli-agent"]
CMD ["--help"]

FROM python:3.13-slim AS light
LABEL org.opencontainers.image.source="https://github.com/asyncli/asyncli" org.opencontainers.image.licenses="MIT"
COPY --from=light-installed /opt/asyncli /opt/asyncli
ENV PATH="/opt/asyncli/bin:$PATH"
RUN useradd --uid 10001 --create-home --home-dir /runs asyncli
USER 10001
WORKDIR /runs
ENTRYPOINT ["asyncli"]
CMD ["--help"]

FROM python:3.13-slim
LABEL org.opencontainers.image.source="https://github.com/asyncli/asyncli" org.opencontainers.image.licenses="MIT"
COPY --from=installed /opt/asyncli /opt/asyncli
ENV PATH="/opt/asyncli/bin:$PATH"
RUN useradd --uid 10001 --create-home --home-dir /runs asyncli
# Holding connections needs no privilege. The memory of a server on the same host and the kernel's share need --user 0, --pid host and
# --cap-add SYS_PTRACE. --network host and --ulimit nofile determine how many connections are possible.
USER 10001
WORKDIR /runs
ENTRYPOINT ["asyncli"]
CMD ["--help"]
