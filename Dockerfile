# emat on a CPU, as a user without privileges.
#
#   docker build -t emat .                                     # --build-arg WEIGHTS=mobilesam bakes crisp outlines in
#   docker run --rm --user "$(id -u)" -v "$PWD:/data" emat fit examples/ -o pets.emat   # as you, so that it may write here
#   docker run --rm -p 127.0.0.1:8000:8000 -e EMAT_TOKEN=secret -v "$PWD:/data" emat serve pets.emat --host 0.0.0.0
#   docker run --rm --network host --user "$(id -u)" -v "$PWD:/data" emat studio --no-browser   # the studio listens on the machine itself
FROM python:3.12-slim-bookworm AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY emat emat
COPY benchmarks/heads benchmarks/heads
RUN python -m venv /opt/emat \
    && /opt/emat/bin/pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" ".[studio,serve,data,science]"

FROM python:3.12-slim-bookworm
# Names of `emat weights list`, such as "mobilesam dinov2-s"; nothing is fetched if it is empty.
ARG WEIGHTS=""
ENV PATH=/opt/emat/bin:$PATH \
    EMAT_HOME=/var/lib/emat
# Whoever runs the container (`docker run --user`) may keep caches beside the weights.
RUN useradd --create-home --uid 10001 emat && install -d -m 1777 "$EMAT_HOME"
COPY --from=build /opt/emat /opt/emat
USER 10001
RUN for name in $WEIGHTS; do emat weights fetch "$name" || exit 1; done \
    && find "$EMAT_HOME" -mindepth 1 -exec chmod a+rwX {} +
WORKDIR /data
EXPOSE 8000
# Only the server has a health; other commands end before the first check counts.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(r.Request('http://127.0.0.1:8000/health', headers={'Authorization': 'Bearer ' + os.environ.get('EMAT_TOKEN', '')}), timeout=9)"]
ENTRYPOINT ["emat"]
CMD ["--help"]
