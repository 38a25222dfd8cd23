# asyncli in a container: docker build -t asyncli . ; the agent alone: --target agent. docs/containers.md says what a run needs.
# Not slim: git is in it, which knows the version.
FROM python:3.13 AS build
RUN pip install --no-cache-dir "build>=1.2"
COPY . /src
RUN python -m build --outdir /dist /src && python -m build --wheel --outdir /dist /src/packaging/agent
# --build-arg EXTRAS="[dask]" adds an extra.
ARG EXTRAS=""
RUN python -m venv /opt/asyncli && /opt/asyncli/bin/pip install --no-cache-dir "$(ls /dist/asyncli-*.whl)${EXTRAS}" && \
    python -m venv /opt/agent && /opt/agent/bin/pip install --no-cache-dir /dist/asyncli_agent-*.whl

FROM python:3.13-slim AS agent
COPY --from=build /opt/agent /opt/agent
ENV PATH="/opt/agent/bin:$PATH"
# What it cannot read as this user it names at its start; as root, with SYS_PTRACE, it reads all.
USER 10001
ENTRYPOINT ["asyncli-agent"]
CMD ["--help"]

FROM python:3.13-slim
LABEL org.opencontainers.image.source="https://github.com/asyncli/asyncli" org.opencontainers.image.licenses="MIT"
COPY --from=build /opt/asyncli /opt/asyncli
ENV PATH="/opt/asyncli/bin:$PATH"
RUN useradd --uid 10001 --create-home --home-dir /runs asyncli
# To hold connections takes no privilege. The memory of a server beside it and the kernel's share take --user 0, --pid host and
# --cap-add SYS_PTRACE; --network host and --ulimit nofile decide how many connections there can be.
USER 10001
WORKDIR /runs
ENTRYPOINT ["asyncli"]
CMD ["--help"]
