# asyncli in a container: docker build -t asyncli . ; docs/containers.md says what a run needs of the host.
# Not slim: git is in it, which knows the version.
FROM python:3.13 AS build
COPY . /src
RUN pip install --no-cache-dir "build>=1.2" && python -m build --wheel --outdir /dist /src
# --build-arg EXTRAS="[dask]" adds an extra.
ARG EXTRAS=""
RUN python -m venv /opt/asyncli && /opt/asyncli/bin/pip install --no-cache-dir "$(ls /dist/asyncli-*.whl)${EXTRAS}"

FROM python:3.13-slim
LABEL org.opencontainers.image.source="https://github.com/asyncli/asyncli" org.opencontainers.image.licenses="MIT"
COPY --from=build /opt/asyncli /opt/asyncli
ENV PATH="/opt/asyncli/bin:$PATH"
RUN useradd --uid 10001 --create-home --home-dir /runs asyncli
# Holding connections needs no privilege. Root and --pid host read the server's memory and the kernel's share; --network host and
# --ulimit nofile=1048576 decide how many connections there can be.
USER 10001
WORKDIR /runs
ENTRYPOINT ["asyncli"]
CMD ["--help"]
